// Writes every sample module as StableHLO text, with its inputs and the results that evaluate()
// gives as raw files, for an independent reader to run (tests/stablehlo). The collectives come
// without results.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "neuron/hlo/testing/samples.h"

namespace neuron::hlo {
namespace {

/// The flat buffer of a strided array; what lies between the elements comes from `background`.
std::vector<std::byte> laid_out(const Array& array, DimsRef strides,
                                std::vector<std::byte> background) {
  const size_t element = size_of(array.type.dtype);
  const DimsRef dims = array.type.dims;
  const auto extent = static_cast<size_t>(storage_extent(dims, strides));
  if (background.size() < extent * element) background.resize(extent * element);
  Dims index(dims.size(), 0);
  for (int64_t linear = 0; linear < count_elements(dims); ++linear) {
    int64_t offset = 0;
    for (size_t d = 0; d < dims.size(); ++d) offset += index[d] * strides[d];
    std::copy_n(array.bytes.begin() + linear * static_cast<int64_t>(element), element,
                background.begin() + offset * static_cast<int64_t>(element));
    for (size_t d = dims.size(); d-- > 0;) {
      if (++index[d] < dims[d]) break;
      index[d] = 0;
    }
  }
  return background;
}

void write(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

std::vector<std::byte> scalar_bytes(DType kind, std::complex<double> value) {
  std::vector<std::byte> bytes(size_of(kind));
  const auto integer = static_cast<int64_t>(value.real());
  const double real = value.real();
  switch (kind) {
    case DType::f64:
      std::memcpy(bytes.data(), &real, 8);
      break;
    case DType::c128:
      std::memcpy(bytes.data(), &value, 16);
      break;
    default:
      std::memcpy(bytes.data(), &integer, 8);
      break;
  }
  return bytes;
}

/// <folder>/<name>.mlir, .in<k>, .out<k>; one line "name rtol atol" on standard output.
void write_sample(const std::string& folder, const Sample& sample) {
  const std::string base = folder + "/" + sample.name;
  std::ofstream(base + ".mlir") << to_stablehlo(sample.module);
  std::vector<std::vector<std::byte>> inputs;
  for (size_t i = 0; i < sample.parameters.size(); ++i) {
    inputs.push_back(laid_out(sample.parameters[i], sample.module.parameters()[i].strides, {}));
  }
  for (size_t i = 0; i < sample.scalars.size(); ++i) {
    inputs.push_back(scalar_bytes(sample.module.scalars()[i].kind, sample.scalars[i]));
  }
  for (size_t i = 0; i < inputs.size(); ++i) write(base + ".in" + std::to_string(i), inputs[i]);
  const std::vector<Array> results = evaluate(sample.module, sample.parameters, sample.scalars);
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& result = sample.module.results()[i];
    std::vector<std::byte> background;
    if (result.alias >= 0) background = inputs[static_cast<size_t>(result.alias)];
    write(base + ".out" + std::to_string(i), laid_out(results[i], result.strides, background));
  }
  std::printf("%s %g %g\n", sample.name.c_str(), sample.rtol, sample.atol);
}

}  // namespace
}  // namespace neuron::hlo

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: hlo_print_samples FOLDER\n";
    return 2;
  }
  try {
    for (const auto& sample : neuron::hlo::all_samples()) {
      neuron::hlo::write_sample(argv[1], sample);
    }
    // Not among the names: it takes several devices.
    std::ofstream(std::string(argv[1]) + "/collectives.mlir")
        << neuron::hlo::to_stablehlo(neuron::hlo::collective_sample());
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
  return 0;
}
