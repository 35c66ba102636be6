#include "neuron/base/dtype.h"

#include <array>

namespace neuron {
namespace {

struct Names {
  std::string_view name;
  std::string_view stablehlo;
};

constexpr std::array<Names, kDTypeCount> kNames = {{
    {"pred", "i1"},
    {"i8", "i8"},
    {"i16", "i16"},
    {"i32", "i32"},
    {"i64", "i64"},
    {"u8", "ui8"},
    {"u16", "ui16"},
    {"u32", "ui32"},
    {"u64", "ui64"},
    {"f16", "f16"},
    {"bf16", "bf16"},
    {"f32", "f32"},
    {"f64", "f64"},
    {"f8e4m3fn", "f8E4M3FN"},
    {"f8e4m3", "f8E4M3"},
    {"f8e5m2", "f8E5M2"},
    {"c64", "complex<f32>"},
    {"c128", "complex<f64>"},
}};

}  // namespace

std::string_view name_of(DType type) { return kNames[static_cast<size_t>(type)].name; }
std::string_view stablehlo_name(DType type) { return kNames[static_cast<size_t>(type)].stablehlo; }

}  // namespace neuron
