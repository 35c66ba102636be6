#include "neuron/compiler/cpu/interpret_nest.h"

#include <cstring>

#include "neuron/base/error.h"
#include "neuron/hlo/evaluate_internal.h"

namespace neuron::compiler::cpu {

namespace {

using hlo::Array;
using hlo::Node;
using hlo::internal::load_at;
using hlo::internal::load_integer;
using hlo::internal::make_array;
using hlo::internal::store_at;

class Interpreter {
 public:
  Interpreter(const LoopNest& nest, void* const* pointers) : nest_(nest), pointers_(pointers) {
    for (const Sweep& sweep : nest.sweeps) {
      for (const Stmt& s : sweep.body) stmts_.push_back(&s);
      for (const RowReduce& r : sweep.reduces) reduces_.push_back(&r);
    }
    for (const RowStore& store : nest.row_stores) {
      for (const Stmt& s : store.epilogue) stmts_.push_back(&s);
    }
    values_.resize(stmts_.size());
    known_.resize(stmts_.size());
    index_.resize(nest.outer.size() + 1);
  }

  void run() {
    const size_t kept = nest_.outer.size() - nest_.reduced_axes;
    int64_t rows = 1, inner = 1;
    for (size_t a = 0; a < nest_.outer.size(); ++a) {
      (a < kept ? rows : inner) *= nest_.outer[a];
    }
    for (int64_t row = 0; row < rows; ++row) {
      int64_t rest = row;
      for (size_t a = kept; a-- > 0;) {
        index_[a] = rest % nest_.outer[a];
        rest /= nest_.outer[a];
      }
      run_row(kept, inner);
    }
  }

 private:
  void run_row(size_t kept, int64_t inner) {
    results_.clear();
    results_.resize(reduces_.size());
    size_t first = 0;
    for (const Sweep& sweep : nest_.sweeps) {
      std::vector<Accumulation> running(sweep.reduces.size());
      for (size_t r = 0; r < running.size(); ++r) start(sweep.reduces[r], running[r]);
      length_ = nest_.row;
      for (int64_t i = 0; i < inner; ++i) {
        int64_t rest = i;
        for (size_t a = nest_.outer.size(); a-- > kept;) {
          index_[a] = rest % nest_.outer[a];
          rest /= nest_.outer[a];
        }
        forget();
        for (size_t r = 0; r < running.size(); ++r) {
          accumulate(sweep.reduces[r], value(sweep.reduces[r].value), i, running[r]);
        }
        // All values before the first store: a store may overwrite what a load reads.
        for (const Store& store : sweep.stores) {
          value(store.value);
          if (store.mask != kNoStmt) value(store.mask);
        }
        for (const Store& store : sweep.stores) write(store.access, store.value, store.mask);
      }
      for (size_t r = 0; r < running.size(); ++r) {
        results_[first + r] = finish(sweep.reduces[r], running[r]);
      }
      first += running.size();
    }
    length_ = nest_.column_reduce ? nest_.row : 1;
    for (size_t a = kept; a < nest_.outer.size(); ++a) index_[a] = 0;
    forget();
    for (const RowStore& store : nest_.row_stores) {
      if (store.value != kNoStmt) value(store.value);
    }
    for (const RowStore& store : nest_.row_stores) {
      if (store.value != kNoStmt) {
        write(store.access, store.value, kNoStmt);
      } else {
        write_array(store.access, results_[store.reduce], nullptr);
      }
    }
  }

  struct Accumulation {
    Array value;                 // One element, or one per row position.
    std::vector<int64_t> index;  // Arg reductions.
  };

  void start(const RowReduce& reduce, Accumulation& a) {
    const int64_t n = nest_.column_reduce ? nest_.row : 1;
    const DType type = reduce.accumulate;
    a.value = make_array({type, {n}});
    a.index.assign(static_cast<size_t>(n), -1);
    hlo::with_compute_type(type, [&](auto tag) {
      using T = decltype(tag);
      for (int64_t i = 0; i < n; ++i) {
        store_at<T>(a.value, i, hlo::internal::identity_of<T>(reduce.kind));
      }
    });
  }

  void accumulate(const RowReduce& reduce, const Array& x, int64_t position, Accumulation& a) {
    hlo::with_compute_type(reduce.accumulate, [&](auto tag) {
      using T = decltype(tag);
      for (int64_t i = 0; i < length_; ++i) {
        const int64_t to = nest_.column_reduce ? i : 0;
        const int64_t at = nest_.column_reduce ? position : position * nest_.row + i;
        const T next = load_at<T>(x, i), old = load_at<T>(a.value, to);
        if (!reduce.arg) {
          store_at<T>(a.value, to, hlo::internal::combine(reduce.kind, old, next));
          continue;
        }
        if constexpr (!hlo::is_complex_v<T>) {
          int64_t& best = a.index[static_cast<size_t>(to)];
          const bool better = reduce.kind == hlo::ReduceKind::Max ? next > old : next < old;
          if (best < 0 || (old == old && (better || next != next))) {
            best = at;
            store_at<T>(a.value, to, next);
          }
        }
      }
    });
  }

  Array finish(const RowReduce& reduce, const Accumulation& a) {
    if (!reduce.arg) return a.value;
    Array result = make_array({DType::i64, a.value.type.dims});
    for (size_t i = 0; i < a.index.size(); ++i) {
      store_at<int64_t>(result, static_cast<int64_t>(i), a.index[i]);
    }
    return result;
  }

  void forget() { std::fill(known_.begin(), known_.end(), uint8_t{0}); }

  const Array& value(StmtId id) {
    if (known_[id] == 0) {
      Array result = compute(*stmts_[id]);
      values_[id] = std::move(result);
      known_[id] = 1;
    }
    return values_[id];
  }

  int64_t base(const Access& access) const {
    int64_t at = access.offset;
    for (size_t a = 0; a < nest_.outer.size(); ++a) at += index_[a] * stride(access, a);
    return at;
  }
  static int64_t stride(const Access& access, size_t axis) {
    switch (access.kind[axis]) {
      case Stride::Zero:
        return 0;
      case Stride::Unit:
        return 1;
      case Stride::Other:
        return access.stride[axis];
    }
    return 0;
  }

  Array compute(const Stmt& s) {
    Array result = make_array({s.type, {length_}});
    const size_t size = size_of(s.type);
    const size_t row = nest_.outer.size();
    auto* pointer = s.kind == StmtKind::Load || s.kind == StmtKind::Gather ||
                            s.kind == StmtKind::Scalar ||
                            (s.kind == StmtKind::Buffered && !s.access.kind.empty())
                        ? static_cast<std::byte*>(pointers_[s.access.pointer])
                        : nullptr;
    const Array* mask = s.masked ? &value(s.in.back()) : nullptr;
    switch (s.kind) {
      case StmtKind::Load:
      case StmtKind::Gather: {
        const int64_t at = base(s.access);
        const int64_t step = stride(s.access, row);
        std::vector<const Array*> indices;
        for (size_t k = 0; k < s.index_stride.size(); ++k) indices.push_back(&value(s.in[k]));
        for (int64_t i = 0; i < length_; ++i) {
          if (mask != nullptr && !load_at<bool>(*mask, i)) continue;
          int64_t from = at + i * step;
          bool inside = true;
          for (size_t k = 0; k < indices.size(); ++k) {
            const int64_t index = load_integer(*indices[k], i);
            inside = inside && index >= 0 && index < s.index_extent[k];
            from += index * s.index_stride[k];
          }
          if (!inside) {
            if (s.checked) std::memcpy(pointers_[nest_.status_pointer], &nest_.status_value, 8);
            continue;
          }
          std::memcpy(result.bytes.data() + static_cast<size_t>(i) * size,
                      pointer + from * static_cast<int64_t>(size), size);
        }
        return result;
      }
      case StmtKind::Scalar:
        for (int64_t i = 0; i < length_; ++i) {
          std::memcpy(result.bytes.data() + static_cast<size_t>(i) * size, pointer + 16 * s.number,
                      size);
        }
        return result;
      case StmtKind::Constant:
        for (int64_t i = 0; i < length_; ++i) {
          std::memcpy(result.bytes.data() + static_cast<size_t>(i) * size, s.bits, size);
        }
        return result;
      case StmtKind::Index:
        for (int64_t i = 0; i < length_; ++i) {
          const auto axis = static_cast<size_t>(s.number);
          store_at<int64_t>(result, i, axis == row ? i : index_[axis]);
        }
        return result;
      case StmtKind::Linear:
        for (int64_t i = 0; i < length_; ++i) {
          store_at<int64_t>(result, i, base(s.access) + i * stride(s.access, row));
        }
        return result;
      case StmtKind::Compute: {
        Node node{s.op, {s.type, {length_}}, {}, {s.number}, {}, {}, {}};
        std::vector<const Array*> operands;
        for (StmtId in : s.in) operands.push_back(&value(in));
        return hlo::internal::evaluate_elementwise(node, operands);
      }
      case StmtKind::Philox: {
        Node node{hlo::Op::PhiloxWord, {DType::u32, {1}}, {}, {s.number}, {}, {}, {}};
        const Array keys = value(s.in[0]), counters = value(s.in[1]);
        for (int64_t i = 0; i < length_; ++i) {
          Array key = make_array({DType::u64, {}}), counter = make_array({DType::u64, {}});
          hlo::internal::copy_element(keys, i, key, 0);
          hlo::internal::copy_element(counters, i, counter, 0);
          const std::vector<const Array*> operands{&key, &counter};
          hlo::internal::copy_element(hlo::internal::evaluate_philox(node, operands), 0, result, i);
        }
        return result;
      }
      case StmtKind::Reduced: {
        const Array& from = results_[static_cast<size_t>(s.number)];
        for (int64_t i = 0; i < length_; ++i) {
          hlo::internal::copy_element(from, nest_.column_reduce ? i : 0, result, i);
        }
        return result;
      }
      case StmtKind::Buffered: {
        if (pointer == nullptr) return compute(*stmts_[static_cast<size_t>(s.number)]);
        const int64_t at = base(s.access);
        for (int64_t i = 0; i < length_; ++i) {
          std::memcpy(result.bytes.data() + static_cast<size_t>(i) * size,
                      pointer + (at + i * stride(s.access, row)) * static_cast<int64_t>(size),
                      size);
        }
        return result;
      }
    }
    return result;
  }

  void write(const Access& access, StmtId id, StmtId mask) {
    write_array(access, value(id), mask != kNoStmt ? &value(mask) : nullptr);
  }

  void write_array(const Access& access, const Array& from, const Array* mask) {
    auto* pointer = static_cast<std::byte*>(pointers_[access.pointer]);
    const size_t size = size_of(access.stored);
    NEURON_ASSERT(size == size_of(from.type.dtype), "a store of another type");
    const int64_t at = base(access), step = stride(access, nest_.outer.size());
    for (int64_t i = 0; i < length_; ++i) {
      if (mask != nullptr && !load_at<bool>(*mask, i)) continue;
      std::memcpy(pointer + (at + i * step) * static_cast<int64_t>(size),
                  from.bytes.data() + static_cast<size_t>(i) * size, size);
    }
  }

  const LoopNest& nest_;
  void* const* pointers_;
  std::vector<const Stmt*> stmts_;
  std::vector<const RowReduce*> reduces_;
  std::vector<Array> values_;
  std::vector<uint8_t> known_;
  std::vector<Array> results_;
  Dims index_;
  int64_t length_ = 0;
};

}  // namespace

void interpret_nest(const LoopNest& nest, void* const* pointers) {
  Interpreter(nest, pointers).run();
}

}  // namespace neuron::compiler::cpu
