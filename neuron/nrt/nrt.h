/* The public Neuron Runtime (NRT) C interface, as far as this project calls or implements it.
 *
 * Own declarations, written from the documented interface (Neuron SDK 2.32; generation 3 of the
 * asynchronous calls). Every call returns a status unless it says otherwise; outputs are the last
 * parameters. "vnc" is the number of a logical NeuronCore among those visible to this process. */
#ifndef NEURON_NRT_NRT_H_
#define NEURON_NRT_NRT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  NRT_SUCCESS = 0,
  NRT_FAILURE = 1,
  NRT_INVALID = 2,
  NRT_INVALID_HANDLE = 3,
  NRT_RESOURCE = 4,
  NRT_TIMEOUT = 5,
  NRT_HW_ERROR = 6,
  NRT_QUEUE_FULL = 7,
  NRT_LOAD_NOT_ENOUGH_NC = 9,
  NRT_UNSUPPORTED_NEFF_VERSION = 10,
  NRT_FAIL_HOST_MEM_ALLOC = 11,
  NRT_UNINITIALIZED = 13,
  NRT_CLOSED = 14,
  NRT_QUEUE_EMPTY = 15,
  NRT_EXEC_UNIT_UNRECOVERABLE = 101,
  NRT_EXEC_BAD_INPUT = 1002,
  NRT_EXEC_COMPLETED_WITH_NUM_ERR = 1003,
  NRT_EXEC_COMPLETED_WITH_ERR = 1004,
  NRT_EXEC_NC_BUSY = 1005,
  NRT_EXEC_OOB = 1006,
  NRT_COLL_PENDING = 1100,
  NRT_EXEC_HW_ERR_COLLECTIVES = 1200,
  NRT_EXEC_HW_ERR_HBM_UE = 1201,
  NRT_EXEC_HW_ERR_NC_UE = 1202,
  NRT_EXEC_HW_ERR_DMA_ABORT = 1203,
  NRT_EXEC_SW_NQ_OVERFLOW = 1204,
  NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE = 1205,
  NRT_NETWORK_PROXY_FAILURE = 1206
} NRT_STATUS;

typedef struct nrt_model nrt_model_t;
typedef struct nrt_tensor nrt_tensor_t;
typedef void nrt_tensor_set_t;

typedef enum {
  NRT_FRAMEWORK_TYPE_INVALID = 0,
  NRT_FRAMEWORK_TYPE_NO_FW = 1,
  NRT_FRAMEWORK_TYPE_TENSORFLOW = 2,
  NRT_FRAMEWORK_TYPE_PYTORCH = 3,
  NRT_FRAMEWORK_TYPE_MXNET = 4,
  NRT_FRAMEWORK_TYPE_PRECHECK = 5
} nrt_framework_type_t;

typedef enum {
  NRT_TENSOR_PLACEMENT_DEVICE = 0,
  NRT_TENSOR_PLACEMENT_HOST = 1,
  NRT_TENSOR_PLACEMENT_VIRTUAL = 2 /* withdrawn in libnrt 2.32 */
} nrt_tensor_placement_t;

typedef enum {
  NRT_DTYPE_UNKNOWN = 0x0,
  NRT_DTYPE_UINT64 = 0x1,
  NRT_DTYPE_INT8 = 0x2,
  NRT_DTYPE_UINT8 = 0x3,
  NRT_DTYPE_INT16 = 0x4,
  NRT_DTYPE_UINT16 = 0x5,
  NRT_DTYPE_BFLOAT16 = 0x6,
  NRT_DTYPE_FLOAT16 = 0x7,
  NRT_DTYPE_INT32 = 0x8,
  NRT_DTYPE_UINT32 = 0x9,
  NRT_DTYPE_FLOAT32 = 0xA,
  NRT_DTYPE_FP32R = 0xB,
  NRT_DTYPE_INT64 = 0xC,
  NRT_DTYPE_FP8_E3 = 0xD,
  NRT_DTYPE_FP8_E4 = 0xE,
  NRT_DTYPE_FP8_E5 = 0xF
} nrt_dtype_t;

typedef enum { NRT_TENSOR_USAGE_INPUT = 0, NRT_TENSOR_USAGE_OUTPUT = 1 } nrt_tensor_usage_t;

typedef struct {
  uint32_t family; /* TRN2 5, TRN2U 9, TRN3 14, ... */
  uint32_t size;   /* 48XL 7, 3XL 8, ... */
  char arch_name[16];
  char device_revision[8];
} nrt_instance_info_t;

typedef struct {
  uint64_t rt_major;
  uint64_t rt_minor;
  uint64_t rt_patch;
  uint64_t rt_maintenance;
  char rt_detail[128];
  char git_hash[64];
} nrt_version_t;

typedef struct {
  uint64_t offset;
  uint64_t size;
  void* buffer;
} nrt_tensor_batch_op_t;

typedef struct {
  const nrt_tensor_t* tensor;
  const nrt_tensor_batch_op_t* ops;
  uint32_t num_ops;
} nrt_tensor_batch_t;

typedef struct {
  uint64_t physical_address;
  size_t size; /* may exceed what was asked for */
  int hbm_index;
} nrt_tensor_device_allocation_info_t;

typedef struct {
  size_t bytes_used;
  size_t bytes_limit;
} nrt_vnc_memory_stats_t;

typedef struct {
  char name[256];
  nrt_tensor_usage_t usage;
  size_t size;
  nrt_dtype_t dtype;
  uint32_t* shape;
  uint32_t ndim;
} nrt_tensor_info_t;

typedef struct {
  uint64_t tensor_count;
  nrt_tensor_info_t tensor_array[];
} nrt_tensor_info_array_t;

typedef struct {
  uint32_t vnc;
} nrt_model_info_t;

/* --- Life cycle ------------------------------------------------------------------------------ */
NRT_STATUS nrt_init(nrt_framework_type_t framework, const char* fw_version,
                    const char* fal_version);
void nrt_close(void);
NRT_STATUS nrt_get_version(nrt_version_t* version, size_t size);
/* The three below may be called before nrt_init. */
NRT_STATUS nrt_get_instance_info(nrt_instance_info_t* info, size_t size);
NRT_STATUS nrt_get_total_vnc_count(uint32_t* count);
NRT_STATUS nrt_get_visible_vnc_count(uint32_t* count);
NRT_STATUS nrt_get_total_nc_count(uint32_t* count);
NRT_STATUS nrt_get_visible_nc_count(uint32_t* count);

/* --- Models ---------------------------------------------------------------------------------- */
/* vnc -1: any core. vnc_count is 1 or -1. */
NRT_STATUS nrt_load(const void* neff, size_t bytes, int32_t vnc, int32_t vnc_count,
                    nrt_model_t** model);
NRT_STATUS nrt_load_collectives(const void* neff, size_t bytes, int32_t vnc, int32_t vnc_count,
                                uint32_t device_id, uint32_t device_count, nrt_model_t** model);
NRT_STATUS nrt_unload(nrt_model_t* model);
NRT_STATUS nrt_execute(nrt_model_t* model, const nrt_tensor_set_t* inputs,
                       nrt_tensor_set_t* outputs);
NRT_STATUS nrt_execute_repeat(nrt_model_t* model, const nrt_tensor_set_t* inputs,
                              nrt_tensor_set_t* outputs, int count);
NRT_STATUS nrt_get_model_tensor_info(nrt_model_t* model, nrt_tensor_info_array_t** info);
NRT_STATUS nrt_free_model_tensor_info(nrt_tensor_info_array_t* info);
NRT_STATUS nrt_get_model_info(const nrt_model_t* model, nrt_model_info_t* info, size_t size,
                              size_t* written);

/* --- Tensors --------------------------------------------------------------------------------- */
NRT_STATUS nrt_tensor_allocate(nrt_tensor_placement_t placement, int vnc, size_t bytes,
                               const char* name, nrt_tensor_t** tensor);
NRT_STATUS nrt_tensor_allocate_empty(const char* name, nrt_tensor_t** tensor);
/* The caller owns the memory for as long as the tensor uses it. May be called again. */
NRT_STATUS nrt_tensor_attach_buffer(nrt_tensor_t* tensor, void* buffer, size_t bytes);
NRT_STATUS nrt_tensor_allocate_slice(const nrt_tensor_t* source, size_t offset, size_t bytes,
                                     const char* name, nrt_tensor_t** tensor);
void nrt_tensor_free(nrt_tensor_t** tensor);
size_t nrt_tensor_get_size(const nrt_tensor_t* tensor);
void* nrt_tensor_get_va(const nrt_tensor_t* tensor); /* NULL on failure */
NRT_STATUS nrt_tensor_read(const nrt_tensor_t* tensor, void* buffer, size_t offset, size_t bytes);
NRT_STATUS nrt_tensor_write(nrt_tensor_t* tensor, const void* buffer, size_t offset, size_t bytes);
NRT_STATUS nrt_tensor_copy(const nrt_tensor_t* source, size_t source_offset,
                           nrt_tensor_t* destination, size_t destination_offset, size_t bytes);
NRT_STATUS nrt_tensor_memset(nrt_tensor_t* tensor, uint64_t offset, int value, size_t bytes);
NRT_STATUS nrt_tensor_read_batch(const nrt_tensor_batch_t* batches, uint64_t count, bool unsafe);
NRT_STATUS nrt_tensor_write_batch(const nrt_tensor_batch_t* batches, uint64_t count, bool unsafe);
NRT_STATUS nrt_tensor_get_device_allocation_info(const nrt_tensor_t* tensor,
                                                 nrt_tensor_device_allocation_info_t* info);
NRT_STATUS nrt_tensor_check_output_completion(const nrt_tensor_t* tensor, int64_t timeout_us,
                                              uint64_t expected);
NRT_STATUS nrt_tensor_reset_output_completion(nrt_tensor_t* tensor);
NRT_STATUS nrt_get_vnc_memory_stats(uint32_t vnc, nrt_vnc_memory_stats_t* stats, size_t size,
                                    size_t* written);

/* --- Tensor sets ----------------------------------------------------------------------------- */
NRT_STATUS nrt_allocate_tensor_set(nrt_tensor_set_t** set);
void nrt_destroy_tensor_set(nrt_tensor_set_t** set);
NRT_STATUS nrt_add_tensor_to_tensor_set(nrt_tensor_set_t* set, const char* name,
                                        nrt_tensor_t* tensor);
NRT_STATUS nrt_get_tensor_from_tensor_set(nrt_tensor_set_t* set, const char* name,
                                          nrt_tensor_t** tensor);

/* --- Collectives ----------------------------------------------------------------------------- */
NRT_STATUS nrt_build_global_comm(int32_t vnc, uint32_t device_id, uint32_t device_count);
NRT_STATUS nrt_barrier(int32_t vnc, uint32_t device_id, uint32_t device_count);

/* --- Asynchronous calls, generation 3 -------------------------------------------------------- */
typedef uint64_t nrta_seq_t; /* execution unit (top 16 bits) | sequence number (48 bits) */
#define NRTA_SEQ_UNIT(seq) ((uint32_t)((seq) >> 48))
#define NRTA_SEQ_NUMBER(seq) ((uint64_t)((seq) & 0xFFFFFFFFFFFFull))

typedef enum { NRTA_XU_TENSOR_OP = 0, NRTA_XU_COMPUTE = 1, NRTA_XU_COLLECTIVES = 2 } nrta_xu_t;

/* `ret` is written at completion and must stay valid until then; so must buffers and tensors.
 * Requests of one (core, unit, queue) run in order; there is no order between units. */
NRT_STATUS nrta_tensor_write(nrt_tensor_t* tensor, const void* buffer, uint64_t offset,
                             uint64_t bytes, int lnc_idx, int queue, NRT_STATUS* ret,
                             nrta_seq_t* seq);
NRT_STATUS nrta_tensor_read(void* buffer, nrt_tensor_t* tensor, uint64_t offset, uint64_t bytes,
                            int lnc_idx, int queue, NRT_STATUS* ret, nrta_seq_t* seq);
NRT_STATUS nrta_tensor_copy(nrt_tensor_t* source, uint64_t source_offset, nrt_tensor_t* destination,
                            uint64_t destination_offset, uint64_t bytes, int lnc_idx, int queue,
                            NRT_STATUS* ret, nrta_seq_t* seq);
NRT_STATUS nrta_execute_schedule(nrt_model_t* model, const nrt_tensor_set_t* inputs,
                                 nrt_tensor_set_t* outputs, int queue, NRT_STATUS* ret,
                                 nrta_seq_t* seq);
NRT_STATUS nrta_is_completed(nrta_seq_t seq, bool* completed);
NRT_STATUS nrta_get_sequence(uint32_t lnc, nrta_xu_t xu, int queue, nrta_seq_t* last_completed);
/* Signals the eventfd when `seq` is complete, at once if it is already. */
NRT_STATUS nrta_event_register_seq_id_completion(nrta_seq_t seq, int eventfd);
/* Signals the eventfd at every completion of the unit; a negative one ends that. */
NRT_STATUS nrta_event_register_xu_completion(int lnc, nrta_xu_t xu, int queue, int eventfd);

#ifdef __cplusplus
}
#endif

#endif /* NEURON_NRT_NRT_H_ */
