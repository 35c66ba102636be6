/* Transport between the processes of one host, as libnrt_sim.so offers it beside the NRT functions:
 * plain C. One exported function gives the table. Names, order and rules of the kinds are those of
 * runtime/communicator.h. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nrtsim_comm_group nrtsim_comm_t;
typedef struct nrtsim_comm_op nrtsim_comm_op_t;

enum {
  NRTSIM_COMM_BARRIER,
  NRTSIM_COMM_BROADCAST,
  NRTSIM_COMM_ALL_REDUCE,
  NRTSIM_COMM_REDUCE,
  NRTSIM_COMM_ALL_GATHER,
  NRTSIM_COMM_GATHER,
  NRTSIM_COMM_SCATTER,
  NRTSIM_COMM_REDUCE_SCATTER,
  NRTSIM_COMM_ALL_TO_ALL,
};

enum {
  NRTSIM_COMM_SUM,
  NRTSIM_COMM_AVERAGE,
  NRTSIM_COMM_PRODUCT,
  NRTSIM_COMM_MIN,
  NRTSIM_COMM_MAX,
  NRTSIM_COMM_BIT_AND,
  NRTSIM_COMM_BIT_OR,
  NRTSIM_COMM_BIT_XOR,
};

typedef struct nrtsim_comm_error {
  int32_t kind; /* neuron::ErrorKind */
  char text[4096];
} nrtsim_comm_error_t;

typedef struct nrtsim_comm_config {
  size_t struct_size;
  int32_t rank, size;
  const int32_t* global_ranks; /* NULL: the ranks themselves */
  const char* group;
  int64_t timeout_ms;
  /* Exchange of values of at most 256 bytes; nonzero: failed, and the caller knows why. */
  void* user;
  int (*set)(void* user, const char* key, const void* value, size_t bytes);
  int (*get)(void* user, const char* key, void* value, size_t bytes);
  int32_t for_programs; /* 1: collectives in programs find the group by its global ranks */
} nrtsim_comm_config_t;

typedef struct nrtsim_comm_piece {
  void* address;
  int64_t count; /* elements */
} nrtsim_comm_piece_t;

/* What both kinds of operations have. `done` runs once, on any thread, when the operation has
 * ended, unless starting it failed. */
typedef struct nrtsim_comm_start {
  size_t struct_size;
  int32_t held;       /* 1: begins at release() */
  int64_t timeout_ms; /* 0: the communicator's */
  void* user;
  void (*done)(void* user, const nrtsim_comm_error_t* error /* NULL: success */);
} nrtsim_comm_start_t;

typedef struct nrtsim_comm_collective {
  size_t struct_size;
  int32_t kind, dtype /* neuron::DType */, reduction, root;
  double factor;
  const nrtsim_comm_piece_t* inputs;
  size_t input_count;
  const nrtsim_comm_piece_t* outputs;
  size_t output_count;
  const char* name;
} nrtsim_comm_collective_t;

typedef struct nrtsim_comm_transfer {
  size_t struct_size;
  int32_t is_send, dtype, peer /* receiver: -1 any */;
  int64_t tag;
  nrtsim_comm_piece_t piece;
} nrtsim_comm_transfer_t;

enum { NRTSIM_COMM_DONE, NRTSIM_COMM_FAILED, NRTSIM_COMM_RUNNING };

typedef struct nrtsim_comm_functions {
  size_t struct_size;
  /* NULL with an error, which has no text if get or set failed. */
  nrtsim_comm_t* (*create)(const nrtsim_comm_config_t* config, nrtsim_comm_error_t* error);
  nrtsim_comm_op_t* (*collective)(nrtsim_comm_t* comm, const nrtsim_comm_collective_t* call,
                                  const nrtsim_comm_start_t* start, nrtsim_comm_error_t* error);
  nrtsim_comm_op_t* (*transfer)(nrtsim_comm_t* comm, const nrtsim_comm_transfer_t* call,
                                const nrtsim_comm_start_t* start, nrtsim_comm_error_t* error);
  /* A held operation may begin. */
  void (*release)(nrtsim_comm_op_t* op);
  /* DONE, FAILED with an error, or RUNNING. `error` may be NULL. */
  int (*state)(const nrtsim_comm_op_t* op, nrtsim_comm_error_t* error);
  /* The same after waiting; RUNNING, with what it waits for, after timeout_ms (< 0: never). */
  int (*wait)(nrtsim_comm_op_t* op, int64_t timeout_ms, nrtsim_comm_error_t* error);
  uint64_t (*op_sequence)(const nrtsim_comm_op_t* op);
  int32_t (*source)(const nrtsim_comm_op_t* op);
  /* Drops the handle; the operation itself runs on. */
  void (*free_op)(nrtsim_comm_op_t* op);

  void (*set_timeout)(nrtsim_comm_t* comm, int64_t timeout_ms);
  uint64_t (*sequence)(const nrtsim_comm_t* comm);
  void (*abort)(nrtsim_comm_t* comm, const char* reason);
  /* Waits for what is outstanding and tells the others that this rank has left. */
  void (*close)(nrtsim_comm_t* comm);
  void (*free_comm)(nrtsim_comm_t* comm);
  /* The process ends: tells all groups, stops the thread. */
  void (*leave_all)(void);
} nrtsim_comm_functions_t;

const nrtsim_comm_functions_t* nrtsim_comm(void);

#ifdef __cplusplus
}
#endif
