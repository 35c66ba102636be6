/* The table of library kernels that a host program hands to the simulator: plain C.
 * Exported by libnrt_sim.so beside the NRT functions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nrtsim_lib_tensor {
  uint32_t dtype; /* neuron::DType */
  uint32_t rank;
  const int64_t* sizes;
  const int64_t* strides; /* elements */
} nrtsim_lib_tensor_t;

/* What stays equal over all runs of one step. Pointers live as long as the loaded program. */
typedef struct nrtsim_lib_call {
  size_t struct_size;
  const char* name;
  const nrtsim_lib_tensor_t* inputs;
  uint32_t input_count;
  const nrtsim_lib_tensor_t* outputs;
  uint32_t output_count;
  const int64_t* ints;
  size_t int_count;
  const void* arguments; /* neff/arguments.h */
  size_t argument_bytes;
} nrtsim_lib_call_t;

/* What the simulator offers to a running kernel. */
typedef struct nrtsim_lib_context {
  size_t struct_size;
  /* Runs body(user, begin, end) over [0, count) on the compute pool, in pieces of at least grain.
   */
  void (*parallel_for)(void (*body)(void* user, int64_t begin, int64_t end), void* user,
                       int64_t count, int64_t grain);
  int threads;
} nrtsim_lib_context_t;

/* A kernel: prepare once per loaded step (may return NULL state), run many times, from several
 * threads at once; destroy at unload. run returns 0, or an NRT status with a message. */
typedef struct nrtsim_lib_kernel {
  size_t struct_size;
  void* (*prepare)(const nrtsim_lib_call_t* call);
  int (*run)(void* state, const nrtsim_lib_call_t* call, void* const* inputs, void* const* outputs,
             const nrtsim_lib_context_t* context, char* message, size_t message_bytes);
  void (*destroy)(void* state);
} nrtsim_lib_kernel_t;

/* name "prefix*" registers for every name with the prefix. Later registrations win. */
void nrtsim_register_kernel(const char* name, const nrtsim_lib_kernel_t* kernel);
/* Message of the last failed NRT call of this thread, for the error text. Never NULL. */
const char* nrtsim_last_error(void);

#ifdef __cplusplus
}
#endif
