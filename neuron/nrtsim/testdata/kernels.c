// Kernels for the tests of the object loader: constant pools, calls inside the object, tables.
#include <stdint.h>

static const float kTable[8] = {1.5f, 2.5f, 3.5f, 4.5f, 5.5f, 6.5f, 7.5f, 8.5f};

__attribute__((noinline)) static float pick(int64_t i) { return kTable[i & 7]; }

// out[i] = in[i] + table[i % 8] * args[0]
__attribute__((visibility("hidden"))) void k00000000000000010000000000000001(
    void* const* pointers, const int64_t* args, int64_t begin, int64_t end) {
  const float* in = (const float*)pointers[0];
  float* out = (float*)pointers[1];
  for (int64_t i = begin; i < end; ++i) out[i] = in[i] + pick(i) * (float)args[0];
}

// out[i] = in[index[i]], sets the status word when the index is not below args[0].
__attribute__((visibility("hidden"))) void k00000000000000010000000000000002(
    void* const* pointers, const int64_t* args, int64_t begin, int64_t end) {
  const float* in = (const float*)pointers[0];
  const int64_t* index = (const int64_t*)pointers[1];
  float* out = (float*)pointers[2];
  int64_t* status = (int64_t*)pointers[3];
  for (int64_t i = begin; i < end; ++i) {
    if ((uint64_t)index[i] >= (uint64_t)args[0]) {
      *status = args[1];
      out[i] = 0;
    } else {
      out[i] = in[index[i]];
    }
  }
}

// out[i] = scalar slot 0 as double + constant[0] * i
__attribute__((visibility("hidden"))) void k00000000000000010000000000000003(
    void* const* pointers, const int64_t* args, int64_t begin, int64_t end) {
  const double* scalar = (const double*)pointers[0];
  const float* constant = (const float*)pointers[1];
  float* out = (float*)pointers[2];
  (void)args;
  for (int64_t i = begin; i < end; ++i) out[i] = (float)(scalar[0] + constant[0] * (double)i);
}
