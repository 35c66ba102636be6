#include "neuron/nrtsim/object_loader.h"

#include <elf.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "neuron/base/error.h"
#include "neuron/nrtsim/code_space.h"

namespace neuron::nrtsim {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
constexpr const char* kMachineName = "x86-64";
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
constexpr const char* kMachineName = "AArch64";
#else
#error "the object loader knows x86-64 and AArch64"
#endif

constexpr size_t kNotLoaded = SIZE_MAX;

/// One object file in memory. All reads are checked against its size.
class Object {
 public:
  explicit Object(std::span<const std::byte> bytes) : bytes_(bytes) { parse(); }

  size_t image_bytes() const { return image_bytes_; }
  size_t alignment() const { return alignment_; }
  /// Copies the sections to `write` and relocates them for `execute`.
  void place(const CodeSpace::Piece& piece) const;
  /// Calls visit(name, offset in the image) for every global function.
  template <typename Visit>
  void each_function(Visit visit) const;

 private:
  template <typename T>
  T read(uint64_t offset, const char* what) const {
    NEURON_CHECK(offset <= bytes_.size() && sizeof(T) <= bytes_.size() - offset, kInvalid, what,
                 " at byte ", offset, " of an object of ", bytes_.size());
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }
  void check_extent(uint64_t offset, uint64_t size, const char* what) const {
    NEURON_CHECK(offset <= bytes_.size() && size <= bytes_.size() - offset, kInvalid, what, " of ",
                 size, " bytes at byte ", offset, " of an object of ", bytes_.size());
  }
  std::string_view string_at(const Elf64_Shdr& table, uint64_t offset) const;
  Elf64_Sym symbol(uint64_t index) const {
    return read<Elf64_Sym>(symbols_.sh_offset + index * sizeof(Elf64_Sym), "symbol");
  }
  uint64_t symbol_count() const { return symbols_.sh_size / sizeof(Elf64_Sym); }
  void parse();

  std::span<const std::byte> bytes_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<size_t> offsets_;  // In the image, or kNotLoaded.
  Elf64_Shdr symbols_{};
  Elf64_Shdr names_{};  // Of the symbols.
  size_t image_bytes_ = 0;
  size_t alignment_ = 16;
};

std::string_view Object::string_at(const Elf64_Shdr& table, uint64_t offset) const {
  NEURON_CHECK(offset < table.sh_size, kInvalid, "a name outside its string table");
  const char* start = reinterpret_cast<const char*>(bytes_.data() + table.sh_offset + offset);
  return {start, strnlen(start, table.sh_size - offset)};
}

void Object::parse() {
  const auto header = read<Elf64_Ehdr>(0, "ELF header");
  NEURON_CHECK(std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
                   header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_type == ET_REL,
               kInvalid, "not a relocatable 64-bit ELF object");
  NEURON_CHECK(header.e_machine == kMachine, kInvalid, "code for machine ", header.e_machine,
               ", this host is ", kMachineName);
  NEURON_CHECK(header.e_shentsize == sizeof(Elf64_Shdr) && header.e_shnum > 0, kInvalid,
               "no section table");
  sections_.resize(header.e_shnum);
  offsets_.assign(header.e_shnum, kNotLoaded);
  for (size_t i = 0; i < sections_.size(); ++i) {
    sections_[i] = read<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr), "section header");
    const Elf64_Shdr& section = sections_[i];
    if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL) {
      check_extent(section.sh_offset, section.sh_size, "section");
    }
    if (section.sh_type == SHT_SYMTAB) {
      symbols_ = section;
      NEURON_CHECK(section.sh_link < header.e_shnum, kInvalid, "no symbol names");
    }
  }
  NEURON_CHECK(symbols_.sh_type == SHT_SYMTAB && symbols_.sh_entsize == sizeof(Elf64_Sym), kInvalid,
               "no symbol table");
  names_ = sections_[symbols_.sh_link];
  check_extent(names_.sh_offset, names_.sh_size, "string table");
  NEURON_CHECK(header.e_shstrndx < header.e_shnum, kInvalid, "no section names");
  const Elf64_Shdr& section_names = sections_[header.e_shstrndx];
  for (size_t i = 0; i < sections_.size(); ++i) {
    const Elf64_Shdr& section = sections_[i];
    if ((section.sh_flags & SHF_ALLOC) == 0 || section.sh_type != SHT_PROGBITS) {
      NEURON_CHECK((section.sh_flags & SHF_ALLOC) == 0 || section.sh_size == 0 ||
                       section.sh_type != SHT_NOBITS,
                   kInvalid, "kernels must not have writable data");
      continue;
    }
    // Nothing unwinds through a kernel.
    if (string_at(section_names, section.sh_name).starts_with(".eh_frame")) continue;
    NEURON_CHECK((section.sh_flags & SHF_WRITE) == 0 || section.sh_size == 0, kInvalid,
                 "kernels must not have writable data");
    const uint64_t align = std::max<uint64_t>(section.sh_addralign, 1);
    NEURON_CHECK(std::has_single_bit(align) && align <= 4096, kInvalid, "alignment ", align);
    image_bytes_ = (image_bytes_ + align - 1) & ~(align - 1);
    offsets_[i] = image_bytes_;
    image_bytes_ += section.sh_size;
    alignment_ = std::max<size_t>(alignment_, align);
  }
  NEURON_CHECK(image_bytes_ > 0, kInvalid, "no code");
}

template <typename Visit>
void Object::each_function(Visit visit) const {
  for (uint64_t i = 1; i < symbol_count(); ++i) {
    const Elf64_Sym sym = symbol(i);
    if (ELF64_ST_TYPE(sym.st_info) != STT_FUNC || ELF64_ST_BIND(sym.st_info) == STB_LOCAL) continue;
    if (sym.st_shndx >= sections_.size() || offsets_[sym.st_shndx] == kNotLoaded) continue;
    if (sym.st_value >= sections_[sym.st_shndx].sh_size) continue;
    visit(string_at(names_, sym.st_name), offsets_[sym.st_shndx] + sym.st_value);
  }
}

[[noreturn]] void refuse_relocation(uint32_t type) {
  raise(ErrorKind::kInvalid, "relocation type ", type, " of ", kMachineName,
        " is not relative to the code");
}

void write32(std::byte* at, int64_t value, bool is_signed) {
  const bool fits = is_signed ? value == static_cast<int32_t>(value)
                              : value == static_cast<int64_t>(static_cast<uint32_t>(value));
  NEURON_CHECK(fits, kInvalid, "a relocation that does not reach its target");
  const auto word = static_cast<uint32_t>(value);
  std::memcpy(at, &word, 4);
}

#if defined(__aarch64__)
// Puts `value` into the bits of an instruction.
void patch(std::byte* at, uint32_t mask, uint32_t bits) {
  uint32_t word;
  std::memcpy(&word, at, 4);
  word = (word & ~mask) | (bits & mask);
  std::memcpy(at, &word, 4);
}
void patch_offset(std::byte* at, int64_t value, int bits, int shift, int position) {
  NEURON_CHECK((value & ((1 << shift) - 1)) == 0 && value >= -(1ll << (bits + shift - 1)) &&
                   value < (1ll << (bits + shift - 1)),
               kInvalid, "a relocation that does not reach its target");
  const uint32_t mask = ((1u << bits) - 1) << position;
  patch(at, mask, static_cast<uint32_t>(value >> shift) << position);
}
// Low twelve bits of an address, scaled by the access size.
void patch_low(std::byte* at, uint64_t address, int shift) {
  NEURON_CHECK((address & ((1u << shift) - 1)) == 0, kInvalid, "a misaligned relocation");
  patch(at, 0xFFFu << 10, static_cast<uint32_t>((address & 0xFFF) >> shift) << 10);
}
#endif

// `at`: the bytes to change (`size` of them are left in the section); `place`: their address when
// they run; `target`: symbol + addend.
void relocate(uint32_t type, std::byte* at, uint64_t size, uint64_t place, uint64_t target) {
  const auto distance = static_cast<int64_t>(target - place);
  const auto need = [&](uint64_t bytes) {
    NEURON_CHECK(size >= bytes, kInvalid, "a relocation beyond its section");
  };
#if defined(__x86_64__)
  switch (type) {
    case R_X86_64_NONE:
      return;
    case R_X86_64_PC32:
    case R_X86_64_PLT32:  // All functions are in the object: no table is needed.
      need(4);
      return write32(at, distance, true);
    case R_X86_64_PC64:
      need(8);
      std::memcpy(at, &distance, 8);
      return;
    default:
      refuse_relocation(type);
  }
#else
  need(4);
  const int64_t pages = static_cast<int64_t>((target & ~0xFFFull) - (place & ~0xFFFull)) >> 12;
  switch (type) {
    case R_AARCH64_NONE:
      return;
    case R_AARCH64_PREL32:
      return write32(at, distance, true);
    case R_AARCH64_PREL64:
      need(8);
      std::memcpy(at, &distance, 8);
      return;
    case R_AARCH64_CALL26:
    case R_AARCH64_JUMP26:
      return patch_offset(at, distance, 26, 2, 0);
    case R_AARCH64_CONDBR19:
    case R_AARCH64_LD_PREL_LO19:
      return patch_offset(at, distance, 19, 2, 5);
    case R_AARCH64_TSTBR14:
      return patch_offset(at, distance, 14, 2, 5);
    case R_AARCH64_ADR_PREL_LO21:
    case R_AARCH64_ADR_PREL_PG_HI21:
    case R_AARCH64_ADR_PREL_PG_HI21_NC: {
      const int64_t value = type == R_AARCH64_ADR_PREL_LO21 ? distance : pages;
      NEURON_CHECK(value >= -(1 << 20) && value < (1 << 20), kInvalid,
                   "a relocation that does not reach its target");
      const auto bits = static_cast<uint32_t>(value);
      return patch(at, (3u << 29) | (0x7FFFFu << 5),
                   ((bits & 3u) << 29) | (((bits >> 2) & 0x7FFFFu) << 5));
    }
    case R_AARCH64_ADD_ABS_LO12_NC:
    case R_AARCH64_LDST8_ABS_LO12_NC:
      return patch_low(at, target, 0);
    case R_AARCH64_LDST16_ABS_LO12_NC:
      return patch_low(at, target, 1);
    case R_AARCH64_LDST32_ABS_LO12_NC:
      return patch_low(at, target, 2);
    case R_AARCH64_LDST64_ABS_LO12_NC:
      return patch_low(at, target, 3);
    case R_AARCH64_LDST128_ABS_LO12_NC:
      return patch_low(at, target, 4);
    default:
      refuse_relocation(type);
  }
#endif
}

void Object::place(const CodeSpace::Piece& piece) const {
  for (size_t i = 0; i < sections_.size(); ++i) {
    if (offsets_[i] == kNotLoaded || sections_[i].sh_size == 0) continue;
    std::memcpy(piece.write + offsets_[i], bytes_.data() + sections_[i].sh_offset,
                sections_[i].sh_size);
  }
  const auto base = reinterpret_cast<uint64_t>(piece.execute);
  for (const Elf64_Shdr& table : sections_) {
    if (table.sh_type == SHT_REL) {
      NEURON_CHECK(table.sh_info >= sections_.size() || offsets_[table.sh_info] == kNotLoaded,
                   kInvalid, "relocations without addends");
    }
    if (table.sh_type != SHT_RELA) continue;
    NEURON_CHECK(table.sh_info < sections_.size(), kInvalid, "relocations of no section");
    const size_t section_offset = offsets_[table.sh_info];
    if (section_offset == kNotLoaded) continue;
    const uint64_t section_size = sections_[table.sh_info].sh_size;
    for (uint64_t k = 0; k < table.sh_size / sizeof(Elf64_Rela); ++k) {
      const auto rela = read<Elf64_Rela>(table.sh_offset + k * sizeof(Elf64_Rela), "relocation");
      NEURON_CHECK(rela.r_offset < section_size, kInvalid, "a relocation beyond its section");
      const Elf64_Sym sym = symbol(ELF64_R_SYM(rela.r_info));
      NEURON_CHECK(sym.st_shndx != SHN_UNDEF || ELF64_R_TYPE(rela.r_info) == 0, kInvalid,
                   "undefined symbol ", string_at(names_, sym.st_name));
      NEURON_CHECK(sym.st_shndx < sections_.size() && offsets_[sym.st_shndx] != kNotLoaded,
                   kInvalid, "a relocation against symbol ", string_at(names_, sym.st_name),
                   ", which is not part of the code");
      const uint64_t target =
          base + offsets_[sym.st_shndx] + sym.st_value + static_cast<uint64_t>(rela.r_addend);
      const size_t at = section_offset + rela.r_offset;
      relocate(ELF64_R_TYPE(rela.r_info), piece.write + at, section_size - rela.r_offset, base + at,
               target);
    }
  }
}

// --- The process's kernels -----------------------------------------------------------------------

struct Kernels {
  std::shared_mutex mutex;  // Guards all members.
  std::unordered_map<Hash128, neff::KernelFunction, Hash128Hasher> functions;
  CodeSpace space;
  LoaderStats stats;
};

// Never destroyed: threads may run kernels while the process ends.
Kernels& kernels() {
  static auto* instance = new Kernels;
  return *instance;
}

// Inverse of neff::kernel_symbol.
bool parse_symbol(std::string_view name, Hash128& hash) {
  if (name.size() != 33 || name[0] != 'k') return false;
  uint64_t words[2] = {0, 0};
  for (size_t i = 0; i < 32; ++i) {
    const char c = name[1 + i];
    uint64_t digit;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return false;
    }
    words[i / 16] = words[i / 16] << 4 | digit;
  }
  hash = {words[1], words[0]};
  return true;
}

// Loads an object, which may hold several kernels. The caller holds the lock.
void load_object(Kernels& all, std::span<const std::byte> bytes) {
  const Object object(bytes);
  const CodeSpace::Piece piece = all.space.allocate(object.image_bytes(), object.alignment());
  object.place(piece);
  all.space.publish(piece, object.image_bytes());
  object.each_function([&](std::string_view name, size_t offset) {
    Hash128 hash;
    if (!parse_symbol(name, hash)) return;
    all.functions.try_emplace(hash, reinterpret_cast<neff::KernelFunction>(piece.execute + offset));
  });
  ++all.stats.objects;
  all.stats.code_bytes += object.image_bytes();
}

}  // namespace

neff::KernelFunction find_kernel(const Hash128& hash) {
  Kernels& all = kernels();
  const std::shared_lock<std::shared_mutex> lock(all.mutex);
  const auto found = all.functions.find(hash);
  return found == all.functions.end() ? nullptr : found->second;
}

LoaderStats loader_stats() {
  Kernels& all = kernels();
  const std::shared_lock<std::shared_mutex> lock(all.mutex);
  return all.stats;
}

std::vector<neff::KernelFunction> load_kernels(std::span<const neff::KernelCode> codes) {
  Kernels& all = kernels();
  std::vector<neff::KernelFunction> functions(codes.size(), nullptr);
  bool complete = true;
  {
    const std::shared_lock<std::shared_mutex> lock(all.mutex);
    for (size_t i = 0; i < codes.size(); ++i) {
      const auto found = all.functions.find(codes[i].hash);
      if (found != all.functions.end()) {
        functions[i] = found->second;
      } else {
        complete = false;
      }
    }
  }
  if (complete) return functions;
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  for (size_t i = 0; i < codes.size(); ++i) {
    if (functions[i] != nullptr) continue;
    auto found = all.functions.find(codes[i].hash);
    if (found == all.functions.end()) {
      const std::string name = neff::kernel_symbol(codes[i].hash);
      NEURON_CHECK(!codes[i].object.empty(), kInvalid, "kernel ", name,
                   " comes without code and is not loaded yet");
      try {
        load_object(all, codes[i].object);
      } catch (const Error& error) {
        throw Error(error.kind(), internal::join("kernel ", name, ": ", error.what()));
      }
      found = all.functions.find(codes[i].hash);
      NEURON_CHECK(found != all.functions.end(), kInvalid, "kernel ", name,
                   ": its object has no function of that name");
    }
    functions[i] = found->second;
  }
  return functions;
}

bool host_can_run(const std::string& cpu_features, std::string& missing) {
#if defined(__x86_64__)
  // Nearly all programs of a process were made for the same CPU. Leaked.
  static std::atomic<const std::string*> accepted{nullptr};
  if (const std::string* known = accepted.load(std::memory_order_acquire);
      known != nullptr && *known == cpu_features) {
    return true;
  }
  struct Feature {
    std::string_view name;
    bool present;
  };
  static const Feature kKnown[] = {
      {"sse4.2", __builtin_cpu_supports("sse4.2") != 0},
      {"avx", __builtin_cpu_supports("avx") != 0},
      {"avx2", __builtin_cpu_supports("avx2") != 0},
      {"fma", __builtin_cpu_supports("fma") != 0},
      {"f16c", __builtin_cpu_supports("f16c") != 0},
      {"bmi", __builtin_cpu_supports("bmi") != 0},
      {"bmi2", __builtin_cpu_supports("bmi2") != 0},
      {"avx512f", __builtin_cpu_supports("avx512f") != 0},
      {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
      {"avx512cd", __builtin_cpu_supports("avx512cd") != 0},
      {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
      {"avx512vl", __builtin_cpu_supports("avx512vl") != 0},
      {"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0},
      {"avx512bf16", __builtin_cpu_supports("avx512bf16") != 0},
  };
  std::string_view rest = cpu_features;
  while (!rest.empty()) {
    const size_t end = rest.find_first_of("+, ");
    const std::string_view word = rest.substr(0, end);
    for (const Feature& feature : kKnown) {
      if (feature.name == word && !feature.present) {
        missing = std::string(word);
        return false;
      }
    }
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  if (const std::string* none = nullptr; accepted.load() == nullptr) {
    auto* copy = new std::string(cpu_features);
    if (!accepted.compare_exchange_strong(none, copy)) delete copy;
  }
#else
  static_cast<void>(cpu_features);
  static_cast<void>(missing);
#endif
  return true;
}

}  // namespace neuron::nrtsim
