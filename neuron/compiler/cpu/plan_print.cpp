#include <sstream>

#include "neuron/compiler/cpu/plan.h"

namespace neuron::compiler::cpu {

namespace {

char letter_of(const neff::BufferRef& ref) {
  using Kind = neff::BufferRef::Kind;
  switch (ref.kind) {
    case Kind::Parameter:
      return 'p';
    case Kind::Result:
      return 'r';
    case Kind::Scalars:
      return 's';
    case Kind::Arena:
      return 'a';
    case Kind::Constant:
      return 'c';
    case Kind::Status:
      return '!';
  }
  return '?';
}

void print_buffer(std::ostream& out, const neff::BufferRef& ref) {
  out << "@" << letter_of(ref) << ref.index;
  if (ref.offset != 0) out << (ref.offset > 0 ? "+" : "") << ref.offset;
}

void print_place(std::ostream& out, const PlannedStep& step, uint16_t pointer) {
  print_buffer(out, step.pointers[pointer]);
}

void print_nest(std::ostream& out, const PlannedStep& step) {
  const LoopNest& nest = step.nest;
  out << (nest.column_reduce ? "columns " : "rows ") << to_string(nest.outer) << " x " << nest.row;
  if (nest.column_reduce) out << " over " << int{nest.reduced_axes};
  for (const Sweep& sweep : nest.sweeps) {
    out << " | " << sweep.body.size() << " stmts";
    for (const Stmt& s : sweep.body) {
      if (s.kind == StmtKind::Load || s.kind == StmtKind::Gather || s.kind == StmtKind::Buffered) {
        out << (s.kind == StmtKind::Load     ? " load:"
                : s.kind == StmtKind::Gather ? " gather:"
                                             : " buffered:")
            << name_of(s.type);
        if (s.kind != StmtKind::Buffered) {
          print_place(out, step, s.access.pointer);
          out << to_string(s.access.stride);
        }
        if (s.masked) out << "?";
      } else if (s.kind == StmtKind::Compute && s.op != hlo::Op::Convert) {
        out << " " << name_of(s.op);
      }
    }
    if (!sweep.reduces.empty()) out << " reduces " << sweep.reduces.size();
    for (const Store& s : sweep.stores) {
      out << " store:" << name_of(s.access.stored);
      print_place(out, step, s.access.pointer);
      out << to_string(s.access.stride);
    }
  }
  for (const RowStore& s : nest.row_stores) {
    out << " rowstore:" << name_of(s.access.stored);
    print_place(out, step, s.access.pointer);
    out << to_string(s.access.stride) << " after " << s.epilogue.size();
  }
}

}  // namespace

std::string to_string(const Plan& plan) {
  std::ostringstream out;
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const PlannedStep& step = plan.steps[s];
    out << s;
    if (step.parallel_group >= 0) out << " (" << step.parallel_group << ")";
    out << ": ";
    if (step.library) {
      out << step.call.name;
      for (const auto& t : step.call.inputs) {
        out << " ";
        print_buffer(out, t.buffer);
        out << to_string(t.dtype, t.dims) << to_string(t.strides);
      }
      out << " ->";
      for (const auto& t : step.call.outputs) {
        out << " ";
        print_buffer(out, t.buffer);
        out << to_string(t.dtype, t.dims) << to_string(t.strides);
      }
    } else {
      print_nest(out, step);
      if (step.grain > 0) out << " grain " << step.grain;
    }
    out << "\n";
  }
  out << "arena " << plan.arena_bytes << ", constants " << plan.constants.size() << "\n";
  return out.str();
}

}  // namespace neuron::compiler::cpu
