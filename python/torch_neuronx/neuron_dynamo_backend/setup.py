"""What Dynamo has to know about the device; runs when Dynamo is first imported."""

import torch


def prepare() -> None:
    _register_device_interface()
    _register_random_state()
    _route_default_backend()


def _register_device_interface() -> None:
    from torch._dynamo import device_interface

    class NeuronInterface(device_interface.DeviceInterface):
        device = torch.neuron.device
        Event = torch.neuron.Event
        Stream = torch.neuron.Stream

        class Worker:
            @staticmethod
            def set_device(device):
                torch.neuron.set_device(device)

            @staticmethod
            def current_device():
                return torch.neuron.current_device()

            @staticmethod
            def get_device_properties(device=None):
                return torch.neuron.get_device_properties(device)

        current_device = staticmethod(torch.neuron.current_device)
        set_device = staticmethod(torch.neuron.set_device)
        device_count = staticmethod(torch.neuron.device_count)
        is_available = staticmethod(torch.neuron.is_available)
        stream = staticmethod(torch.neuron.stream)
        current_stream = staticmethod(torch.neuron.current_stream)
        set_stream = staticmethod(torch.neuron.set_stream)
        synchronize = staticmethod(torch.neuron.synchronize)
        exchange_device = staticmethod(torch.neuron.exchange_device)
        maybe_exchange_device = staticmethod(torch.neuron.maybe_exchange_device)
        get_device_properties = staticmethod(torch.neuron.get_device_properties)
        memory_allocated = staticmethod(torch.neuron.memory_allocated)
        is_bf16_supported = staticmethod(torch.neuron.is_bf16_supported)

        @staticmethod
        def _set_stream_by_id(stream_id, device_index, device_type):
            torch.neuron.set_stream(
                torch.neuron.Stream(
                    stream_id=stream_id, device_index=device_index, device_type=device_type
                )
            )

        @staticmethod
        def get_raw_stream(device_index):
            return torch.neuron.current_stream(device_index).stream_id

        @staticmethod
        def get_compute_capability(device=None):
            return torch.neuron.get_device_properties(device).name

        @staticmethod
        def is_dtype_supported(dtype, including_emulation=False):
            return True

        @staticmethod
        def is_triton_capable(device=None):
            return False

        @staticmethod
        def raise_if_triton_unavailable(device=None):
            raise RuntimeError("neuron: Triton kernels do not run on this device")

    device_interface.register_interface_for_device("neuron", NeuronInterface)
    for index in range(torch.neuron.device_count()):
        device_interface.register_interface_for_device(f"neuron:{index}", NeuronInterface)


def _register_random_state() -> None:
    try:
        from torch._functorch._aot_autograd.utils import register_graphsafe_rng_device_type
    except ImportError:  # Moved or gone in another torch: checkpointed dropout then stays eager.
        return
    register_graphsafe_rng_device_type("neuron")


def _route_default_backend() -> None:
    """``torch.compile(model)`` without a backend: graphs with our device come to us, others go to
    Inductor with the user's mode and options."""

    def default_backend(gm, example_inputs, *, mode=None, options=None, **kwargs):
        from torch_neuronx.neuron_dynamo_backend.backend import graph_device, neuron_backend

        if graph_device(gm, example_inputs) is not None:
            return neuron_backend(gm, example_inputs, mode=mode, options=options, **kwargs)
        from torch._inductor import compile as inductor_compile
        from torch._inductor import list_mode_options

        patches = dict(list_mode_options(mode)) if mode and mode != "default" else {}
        patches.update(options or {})
        return inductor_compile(gm, example_inputs, options=patches or None)

    torch.compiler.set_default_backend(default_backend)
