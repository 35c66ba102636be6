// torch.accelerator.Graph: capture and replay of a stream's work.

#include <ATen/core/GraphImplInterface.h>

#include <fstream>

#include "neuron/aten/tensor.h"
#include "neuron/runtime/capture.h"

namespace neuron::aten {
namespace {

/// Captures the current stream of the current device. All capture modes are one: work of other
/// streams and threads goes on, and whatever would wait for the captured stream is refused.
class NeuronGraph final : public at::GraphImplInterface {
 public:
  explicit NeuronGraph(const at::GraphImplArgs&) {}
  ~NeuronGraph() override {
    if (is_capturing_) runtime::end_capture(capture_);
  }

  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode) override {
    TORCH_CHECK(capture_ == nullptr, "neuron: this graph holds a capture; reset() it first");
    if (pool != at::MempoolId_t{0, 0}) pool_ = pool;
    device_ = current_device();
    capture_ = translating_errors([&] {
      runtime::ensure_device(device_);
      return runtime::begin_capture(device_, current_stream(device_));
    });
    is_capturing_ = true;
  }
  void capture_end() override {
    TORCH_CHECK(is_capturing_, "neuron: capture_end() without capture_begin()");
    runtime::end_capture(capture_);
    is_capturing_ = false;
  }
  void instantiate() override { check_captured(); }
  void replay() override {
    check_captured();
    translating_errors([&] { runtime::replay(capture_, current_stream(device_)); });
  }
  void reset() override {
    if (is_capturing_) capture_end();
    capture_.reset();
  }
  /// Memory belongs to the graph that recorded its use; pools can be named but are not needed.
  at::MempoolId_t pool() const override { return pool_; }
  void enable_debug_mode() override { debug_ = true; }
  void debug_dump(const std::string& path) override {
    check_captured();
    TORCH_CHECK(debug_, "neuron: call enable_debug_mode() before debug_dump()");
    std::ofstream file(path);
    file << runtime::describe(capture_);
    TORCH_CHECK(file.good(), "neuron: cannot write ", path);
  }

 private:
  void check_captured() const {
    TORCH_CHECK(capture_ != nullptr && !is_capturing_,
                "neuron: the graph must be captured before it is instantiated or replayed");
  }
  static at::MempoolId_t new_pool() {
    static std::atomic<unsigned long long> next{1};
    return {next++, 0};
  }

  runtime::CaptureRef capture_;
  bool is_capturing_ = false;
  bool debug_ = false;
  c10::DeviceIndex device_ = 0;
  at::MempoolId_t pool_ = new_pool();
};

}  // namespace
}  // namespace neuron::aten

namespace at {
// The key is the device's name, which is another one until the backend is renamed.
using neuron::aten::NeuronGraph;
C10_REGISTER_CLASS(GraphImplRegistry, NEURON, NeuronGraph)
C10_REGISTER_CLASS(GraphImplRegistry, PRIVATEUSEONE, NeuronGraph)
}  // namespace at
