#include <bit>
#include <cstring>
#include <type_traits>

#include "neuron/base/error.h"
#include "neuron/neff/program.h"

// The file is flat: a header, then the fields of the Program in order, little endian, unpadded.
// One visitor describes the fields; it is run by a sizer, a writer and a reader, so that the three
// cannot disagree and writing needs one allocation.
namespace neuron::neff {
namespace {

static_assert(std::endian::native == std::endian::little, "the container is little endian");

constexpr char kMagic[8] = {'N', 'E', 'U', 'R', 'O', 'N', 'X', '1'};
constexpr uint32_t kVersion = 2;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint64_t total_bytes;
  uint64_t checksum;  // Of everything behind the header.
};
static_assert(sizeof(Header) == 32);

uint64_t load64(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, 8);
  return word;
}

// Four independent lanes, since constants may be large: about memory speed.
uint64_t checksum_of(const std::byte* data, size_t size) {
  constexpr uint64_t kA = 0x9E3779B97F4A7C15ull;
  constexpr uint64_t kB = 0xD6E8FEB86659FD93ull;
  uint64_t lane[4] = {size ^ kA, ~size, kB, kA + kB};
  while (size >= 64) {
    for (int i = 0; i < 4; ++i) {
      lane[i] = mix64(load64(data + 16 * i) ^ kA ^ lane[i], load64(data + 16 * i + 8) ^ kB);
    }
    data += 64;
    size -= 64;
  }
  uint64_t sum = mix64(lane[0] ^ kB, lane[1] ^ kA) ^ mix64(lane[2] + kA, lane[3] + kB);
  while (size >= 8) {
    sum = mix64(sum ^ load64(data), kA);
    data += 8;
    size -= 8;
  }
  uint64_t tail = 0;
  if (size > 0) std::memcpy(&tail, data, size);
  return mix64(sum ^ tail, kB);
}

// Counts the bytes.
class Sizer {
 public:
  static constexpr bool kReads = false;
  size_t size() const { return size_; }
  template <typename T>
  void scalar(const T&) {
    size_ += sizeof(T);
  }
  void raw(const void*, size_t bytes) { size_ += bytes; }

 private:
  size_t size_ = 0;
};

class Writer {
 public:
  static constexpr bool kReads = false;
  explicit Writer(std::byte* at) : at_(at) {}
  template <typename T>
  void scalar(const T& value) {
    std::memcpy(at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  void raw(const void* data, size_t bytes) {
    if (bytes > 0) std::memcpy(at_, data, bytes);
    at_ += bytes;
  }

 private:
  std::byte* at_;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  Reader(const std::byte* data, size_t size) : at_(data), left_(size) {}
  template <typename T>
  void scalar(T& value) {
    need(sizeof(T));
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    left_ -= sizeof(T);
  }
  void raw(void* data, size_t bytes) {
    need(bytes);
    if (bytes > 0) std::memcpy(data, at_, bytes);
    at_ += bytes;
    left_ -= bytes;
  }
  // A count whose items take at least `bytes` each: garbage cannot make us allocate more than the
  // file could fill.
  uint32_t count(size_t bytes) {
    uint32_t items = 0;
    scalar(items);
    NEURON_CHECK(items <= left_ / bytes, kInvalid, "corrupt NEFF: a list of ", items,
                 " items of at least ", bytes, " bytes, but only ", left_, " bytes are left");
    return items;
  }
  size_t left() const { return left_; }

 private:
  void need(size_t bytes) const {
    NEURON_CHECK(bytes <= left_, kInvalid, "corrupt NEFF: ", bytes, " bytes wanted, ", left_,
                 " left");
  }
  const std::byte* at_;
  size_t left_;
};

// Vectors and strings of plain elements: a count and the bytes. 64-bit counts for blobs.
template <typename Archive, typename Container>
void plain(Archive& archive, Container& items) {
  using T = std::remove_cvref_t<decltype(items[0])>;
  static_assert(std::is_trivially_copyable_v<T>);
  if constexpr (Archive::kReads) {
    items.resize(archive.count(sizeof(T)));
    archive.raw(items.data(), items.size() * sizeof(T));
  } else {
    archive.scalar(static_cast<uint32_t>(items.size()));
    archive.raw(items.data(), items.size() * sizeof(T));
  }
}

template <typename Archive, typename Container>
void blob(Archive& archive, Container& bytes) {
  if constexpr (Archive::kReads) {
    uint64_t size = 0;
    archive.scalar(size);
    NEURON_CHECK(size <= archive.left(), kInvalid, "corrupt NEFF: a section of ", size,
                 " bytes, but only ", archive.left(), " are left");
    bytes.resize(size);
    archive.raw(bytes.data(), size);
  } else {
    archive.scalar(static_cast<uint64_t>(bytes.size()));
    archive.raw(bytes.data(), bytes.size());
  }
}

template <typename Archive, typename Container, typename Visit>
void list(Archive& archive, Container& items, size_t least_bytes, Visit visit) {
  if constexpr (Archive::kReads) {
    items.resize(archive.count(least_bytes));
  } else {
    archive.scalar(static_cast<uint32_t>(items.size()));
  }
  for (auto& item : items) visit(item);
}

template <typename Archive, typename Enum>
void enumeration(Archive& archive, Enum& value, int count, const char* what) {
  if constexpr (Archive::kReads) {
    uint8_t number = 0;
    archive.scalar(number);
    NEURON_CHECK(number < count, kInvalid, "corrupt NEFF: ", what, " ", int{number},
                 " is not below ", count);
    value = static_cast<Enum>(number);
  } else {
    archive.scalar(static_cast<uint8_t>(value));
  }
}

constexpr size_t kRefBytes = 13;

template <typename Archive, typename Ref>
void buffer_ref(Archive& archive, Ref& ref) {
  enumeration(archive, ref.kind, 6, "buffer kind");
  archive.scalar(ref.index);
  archive.scalar(ref.offset);
}

template <typename Archive, typename Tensor>
void library_tensor(Archive& archive, Tensor& tensor) {
  buffer_ref(archive, tensor.buffer);
  enumeration(archive, tensor.dtype, kDTypeCount, "dtype");
  plain(archive, tensor.dims);
  plain(archive, tensor.strides);
}

template <typename Archive, typename S>
void visit_step(Archive& archive, S& step) {
  enumeration(archive, step.kind, 3, "step kind");
  archive.scalar(step.parallel_group);
  archive.scalar(step.work);
  if (step.kind == Step::Kind::Kernel) {
    auto& kernel = step.kernel;
    archive.scalar(kernel.kernel);
    archive.scalar(kernel.extent);
    archive.scalar(kernel.grain);
    list(archive, kernel.pointers, kRefBytes, [&](auto& ref) { buffer_ref(archive, ref); });
    plain(archive, kernel.args);
  } else {
    auto& library = step.library;
    plain(archive, library.name);
    list(archive, library.inputs, kRefBytes, [&](auto& x) { library_tensor(archive, x); });
    list(archive, library.outputs, kRefBytes, [&](auto& x) { library_tensor(archive, x); });
    plain(archive, library.ints);
    plain(archive, library.arguments);
  }
}

template <typename Archive, typename Info>
void tensor_info(Archive& archive, Info& info) {
  enumeration(archive, info.dtype, kDTypeCount, "dtype");
  plain(archive, info.dims);
  archive.scalar(info.bytes);
  archive.scalar(info.alias);
}

template <typename Archive, typename P>
void visit_program(Archive& archive, P& program) {
  plain(archive, program.target);
  plain(archive, program.cpu_features);
  archive.scalar(program.scalar_count);
  archive.scalar(program.arena_bytes);
  list(archive, program.parameters, 17, [&](auto& info) { tensor_info(archive, info); });
  list(archive, program.results, 17, [&](auto& info) { tensor_info(archive, info); });
  list(archive, program.kernels, 24, [&](auto& kernel) {
    archive.scalar(kernel.hash);
    blob(archive, kernel.object);
  });
  list(archive, program.steps, 37, [&](auto& step) { visit_step(archive, step); });
  blob(archive, program.constants);
}

// --- What must hold beyond the format ------------------------------------------------------------

// `guarded`: code decides at run time what it touches. A padded read, say, starts before its buffer
// and skips what lies outside, so that only the buffer itself can be checked.
void check_ref(const Program& program, const BufferRef& ref, size_t step, bool guarded = false) {
  using Kind = BufferRef::Kind;
  int64_t size = 0;
  switch (ref.kind) {
    case Kind::Parameter:
      NEURON_CHECK(ref.index < program.parameters.size(), kInvalid, "corrupt NEFF: step ", step,
                   " uses parameter ", ref.index, " of ", program.parameters.size());
      size = program.parameters[ref.index].bytes;
      break;
    case Kind::Result:
      NEURON_CHECK(ref.index < program.results.size(), kInvalid, "corrupt NEFF: step ", step,
                   " uses result ", ref.index, " of ", program.results.size());
      size = program.results[ref.index].bytes;
      break;
    case Kind::Scalars:
      size = static_cast<int64_t>(program.scalar_count) * 16;
      break;
    case Kind::Arena:
      size = program.arena_bytes;
      break;
    case Kind::Constant:
      size = static_cast<int64_t>(program.constants.size());
      break;
    case Kind::Status:
      size = 0;
      break;
  }
  NEURON_CHECK(guarded || (ref.offset >= 0 && ref.offset <= size), kInvalid, "corrupt NEFF: step ",
               step, " uses byte ", ref.offset, " of a buffer of ", size);
}

void check_library_tensor(const Program& program, const LibraryTensor& tensor, size_t step) {
  check_ref(program, tensor.buffer, step);
  NEURON_CHECK(tensor.dims.size() == tensor.strides.size(), kInvalid, "corrupt NEFF: step ", step,
               " has a tensor of ", tensor.dims.size(), " dims and ", tensor.strides.size(),
               " strides");
  for (const int64_t size : tensor.dims) {
    NEURON_CHECK(size >= 0, kInvalid, "corrupt NEFF: step ", step, " has a dim of size ", size);
  }
}

void check_program(const Program& program) {
  NEURON_CHECK(program.arena_bytes >= 0, kInvalid, "corrupt NEFF: an arena of ",
               program.arena_bytes, " bytes");
  for (const auto* infos : {&program.parameters, &program.results}) {
    for (const TensorInfo& info : *infos) {
      NEURON_CHECK(info.bytes >= 0, kInvalid, "corrupt NEFF: a tensor of ", info.bytes, " bytes");
      NEURON_CHECK(info.alias >= -1 && info.alias < static_cast<int64_t>(program.parameters.size()),
                   kInvalid, "corrupt NEFF: a result that overwrites parameter ", info.alias,
                   " of ", program.parameters.size());
    }
  }
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    if (step.kind == Step::Kind::Kernel) {
      NEURON_CHECK(step.kernel.kernel < program.kernels.size(), kInvalid, "corrupt NEFF: step ", i,
                   " runs kernel ", step.kernel.kernel, " of ", program.kernels.size());
      NEURON_CHECK(step.kernel.extent >= 0 && step.kernel.grain >= 0, kInvalid,
                   "corrupt NEFF: step ", i, " has extent ", step.kernel.extent, " and grain ",
                   step.kernel.grain);
      for (const BufferRef& ref : step.kernel.pointers) check_ref(program, ref, i, true);
    } else {
      for (const LibraryTensor& x : step.library.inputs) check_library_tensor(program, x, i);
      for (const LibraryTensor& x : step.library.outputs) check_library_tensor(program, x, i);
    }
  }
}

}  // namespace

bool is_our_neff(const std::byte* data, size_t size) {
  return size >= sizeof(Header) && std::memcmp(data, kMagic, sizeof(kMagic)) == 0;
}

std::vector<std::byte> write_neff(const Program& program) {
  Sizer sizer;
  visit_program(sizer, program);
  std::vector<std::byte> file(sizeof(Header) + sizer.size());
  Writer writer(file.data() + sizeof(Header));
  visit_program(writer, program);
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.header_bytes = sizeof(Header);
  header.total_bytes = file.size();
  header.checksum = checksum_of(file.data() + sizeof(Header), sizer.size());
  std::memcpy(file.data(), &header, sizeof(header));
  return file;
}

Program read_neff(const std::byte* data, size_t size) {
  NEURON_CHECK(is_our_neff(data, size), kInvalid, "not a NEFF of this project: ", size,
               " bytes without the magic number NEURONX1");
  Header header;
  std::memcpy(&header, data, sizeof(header));
  NEURON_CHECK(header.version == kVersion, kInvalid, "NEFF of version ", header.version,
               ", this reader knows version ", kVersion);
  NEURON_CHECK(header.header_bytes == sizeof(Header) && header.total_bytes == size, kInvalid,
               "corrupt NEFF: ", size, " bytes, but the header says ", header.total_bytes);
  const uint64_t checksum = checksum_of(data + sizeof(Header), size - sizeof(Header));
  NEURON_CHECK(checksum == header.checksum, kInvalid, "corrupt NEFF: its checksum does not match");
  Reader reader(data + sizeof(Header), size - sizeof(Header));
  Program program;
  visit_program(reader, program);
  NEURON_CHECK(reader.left() == 0, kInvalid, "corrupt NEFF: ", reader.left(),
               " bytes behind the end");
  check_program(program);
  return program;
}

}  // namespace neuron::neff
