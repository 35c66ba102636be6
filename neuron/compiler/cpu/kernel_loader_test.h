#pragma once

#include <elf.h>
#include <sys/mman.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

// A loader of one relocatable object, for tests: sections behind each other in one mapping,
// relative relocations, and no symbol from outside.
namespace neuron::compiler::cpu::testing {

class LoadedKernel {
 public:
  using Function = void (*)(void* const*, const int64_t*, int64_t, int64_t);

  explicit LoadedKernel(const std::vector<std::byte>& object) {
    const auto* base = reinterpret_cast<const char*>(object.data());
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(base);
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(base + header->e_shoff);
    std::vector<size_t> place(header->e_shnum, 0);
    for (int s = 0; s < header->e_shnum; ++s) {
      if ((sections[s].sh_flags & SHF_ALLOC) == 0) continue;
      const size_t align = std::max<size_t>(sections[s].sh_addralign, 64);
      size_ = (size_ + align - 1) / align * align;
      place[s] = size_;
      size_ += sections[s].sh_size;
    }
    size_ = (size_ + 4095) / 4096 * 4096;
    memory_ = static_cast<char*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int s = 0; s < header->e_shnum; ++s) {
      if ((sections[s].sh_flags & SHF_ALLOC) != 0 && sections[s].sh_type != SHT_NOBITS) {
        std::memcpy(memory_ + place[s], base + sections[s].sh_offset, sections[s].sh_size);
      }
    }
    for (int s = 0; s < header->e_shnum; ++s) {
      if (sections[s].sh_type != SHT_SYMTAB) continue;
      const auto* symbols = reinterpret_cast<const Elf64_Sym*>(base + sections[s].sh_offset);
      const char* names = base + sections[sections[s].sh_link].sh_offset;
      const size_t count = sections[s].sh_size / sizeof(Elf64_Sym);
      for (size_t k = 1; k < count; ++k) {
        if (symbols[k].st_shndx == SHN_UNDEF)
          undefined += std::string(names + symbols[k].st_name) + " ";
        if (ELF64_ST_BIND(symbols[k].st_info) == STB_GLOBAL && symbols[k].st_shndx != SHN_UNDEF) {
          ++globals;
          name = names + symbols[k].st_name;
          function_ = reinterpret_cast<Function>(memory_ + place[symbols[k].st_shndx] +
                                                 symbols[k].st_value);
          code_bytes = symbols[k].st_size;
        }
      }
      if (!undefined.empty()) throw std::runtime_error("undefined symbols: " + undefined);
      relocate(base, header, sections, symbols, place);
    }
    mprotect(memory_, size_, PROT_READ | PROT_EXEC);
  }
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;
  ~LoadedKernel() { munmap(memory_, size_); }

  Function function() const { return function_; }
  std::string name;
  std::string undefined;
  size_t code_bytes = 0;
  int globals = 0;

 private:
  void relocate(const char* base, const Elf64_Ehdr* header, const Elf64_Shdr* sections,
                const Elf64_Sym* symbols, const std::vector<size_t>& place) {
    for (int s = 0; s < header->e_shnum; ++s) {
      if (sections[s].sh_type != SHT_RELA) continue;
      if ((sections[sections[s].sh_info].sh_flags & SHF_ALLOC) == 0) continue;
      const auto* relocations = reinterpret_cast<const Elf64_Rela*>(base + sections[s].sh_offset);
      for (size_t k = 0; k < sections[s].sh_size / sizeof(Elf64_Rela); ++k) {
        const Elf64_Rela& r = relocations[k];
        const Elf64_Sym& symbol = symbols[ELF64_R_SYM(r.r_info)];
        char* at = memory_ + place[sections[s].sh_info] + r.r_offset;
        const char* target = memory_ + place[symbol.st_shndx] + symbol.st_value;
        const int64_t value = target + r.r_addend - at;
        switch (ELF64_R_TYPE(r.r_info)) {
          case R_X86_64_PC32:
          case R_X86_64_PLT32: {
            const auto narrow = static_cast<int32_t>(value);
            std::memcpy(at, &narrow, 4);
            break;
          }
          case R_X86_64_PC64:
            std::memcpy(at, &value, 8);
            break;
          default:
            throw std::runtime_error("relocation of another kind");
        }
      }
    }
  }

  char* memory_ = nullptr;
  size_t size_ = 0;
  Function function_ = nullptr;
};

/// A buffer that ends at (or starts after) a page that faults.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes) : bytes_(bytes) {
    const size_t pages = (bytes + 4095) / 4096 + 2;
    total_ = pages * 4096;
    base_ = static_cast<char*>(
        mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_, 4096, PROT_NONE);
    mprotect(base_ + total_ - 4096, 4096, PROT_NONE);
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  ~GuardedBuffer() { munmap(base_, total_); }
  void* data() const { return base_ + total_ - 4096 - bytes_; }

 private:
  size_t bytes_;
  size_t total_;
  char* base_;
};

}  // namespace neuron::compiler::cpu::testing
