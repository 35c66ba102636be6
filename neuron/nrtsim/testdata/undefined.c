// An object that needs another one: the loader must refuse it.
#include <stdint.h>

float elsewhere(float);

__attribute__((visibility("hidden"))) void k00000000000000020000000000000001(
    void* const* pointers, const int64_t* args, int64_t begin, int64_t end) {
  float* out = (float*)pointers[0];
  (void)args;
  for (int64_t i = begin; i < end; ++i) out[i] = elsewhere(out[i]);
}
