#include "neuron/compiler/cpu/schedule.h"

#include <algorithm>
#include <queue>

#include "neuron/base/error.h"

namespace neuron::compiler::cpu {

using neff::BufferRef;

namespace {

template <typename Body>
void for_each_buffer(PlannedStep& step, Body&& body) {
  for (BufferRef& ref : step.pointers) body(ref);
  for (neff::LibraryTensor& t : step.call.inputs) body(t.buffer);
  for (neff::LibraryTensor& t : step.call.outputs) body(t.buffer);
}

/// Steps that write (or read) a place, as linked lists.
struct Writers {
  std::vector<int32_t> head, next;
  std::vector<int32_t> step;
  void add(uint32_t place, int32_t s) {
    if (place >= head.size()) head.resize(place + 1, -1);
    step.push_back(s);
    next.push_back(head[place]);
    head[place] = static_cast<int32_t>(step.size() - 1);
  }
  int32_t first(uint32_t place) const { return place < head.size() ? head[place] : -1; }
  int32_t after(int32_t item) const { return next[static_cast<size_t>(item)]; }
  int32_t at(int32_t item) const { return step[static_cast<size_t>(item)]; }
};

struct Graph {
  std::vector<std::pair<int32_t, int32_t>> edges;  // before, after
  void add(int32_t before, int32_t after) {
    if (before != after) edges.push_back({before, after});
  }
};

/// Stable topological order by rank; false if there is a cycle.
bool order_steps(std::span<const PlannedStep> steps, const Graph& graph,
                 std::vector<int32_t>* order) {
  const size_t n = steps.size();
  std::vector<int32_t> waiting(n, 0), begin(n + 1, 0), targets(graph.edges.size());
  for (auto [before, after] : graph.edges) {
    ++begin[static_cast<size_t>(before) + 1];
    ++waiting[static_cast<size_t>(after)];
  }
  for (size_t i = 0; i < n; ++i) begin[i + 1] += begin[i];
  std::vector<int32_t> fill(begin.begin(), begin.end() - 1);
  for (auto [before, after] : graph.edges) {
    targets[static_cast<size_t>(fill[static_cast<size_t>(before)]++)] = after;
  }
  using Item = std::pair<int64_t, int32_t>;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> ready;
  for (size_t i = 0; i < n; ++i) {
    if (waiting[i] == 0) ready.push({steps[i].rank, static_cast<int32_t>(i)});
  }
  order->clear();
  while (!ready.empty()) {
    const int32_t s = ready.top().second;
    ready.pop();
    order->push_back(s);
    for (int32_t e = begin[static_cast<size_t>(s)]; e < begin[static_cast<size_t>(s) + 1]; ++e) {
      const int32_t t = targets[static_cast<size_t>(e)];
      if (--waiting[static_cast<size_t>(t)] == 0) {
        ready.push({steps[static_cast<size_t>(t)].rank, t});
      }
    }
  }
  return order->size() == n;
}

/// Sends result r through the arena and copies it at the end.
void redirect(Fusion& f, NestBuilder& builder, Plan* plan, uint32_t r) {
  const hlo::Module& module = f.module();
  const auto place = static_cast<uint32_t>(module.size() + r);
  for (PlannedStep& step : plan->steps) {
    if (step.last) continue;
    for_each_buffer(step, [&](BufferRef& ref) {
      if (ref.kind == BufferRef::Kind::Result && ref.index == r) {
        ref.kind = BufferRef::Kind::Arena;
        ref.index = place;
      }
    });
  }
  const hlo::Result& result = module.results()[r];
  const hlo::Type& type = module.node(result.value).type;
  if (count_elements(type.dims) == 0) return;
  PlannedStep copy =
      builder.build_copy(type.dtype, type.dims, result.strides, {BufferRef::Kind::Arena, place, 0},
                         result.strides, {BufferRef::Kind::Result, r, 0});
  copy.last = true;
  copy.rank = static_cast<int64_t>(place) + static_cast<int64_t>(module.results().size());
  plan->steps.push_back(std::move(copy));
}

}  // namespace

void schedule(Fusion& f, NestBuilder& builder, Plan* plan) {
  const hlo::Module& module = f.module();
  std::vector<PlannedStep>& steps = plan->steps;
  const auto results = static_cast<uint32_t>(module.results().size());

  // Which aliased results may be written in place?
  SmallVector<uint8_t, 16> direct(results), redirected(results);
  bool aliased = false;
  for (uint32_t r = 0; r < results; ++r) {
    const hlo::Result& result = module.results()[r];
    if (result.staged) {
      redirected[r] = 1;
    } else if (result.alias >= 0) {
      direct[r] = 1;
      aliased = true;
      for (uint32_t q = 0; q < r; ++q) {
        if (module.results()[q].alias == result.alias) redirected[r] = redirected[q] = 1;
      }
    }
  }
  for (const PlannedStep& step : steps) {
    for (uint32_t r : step.unsafe) redirected[r] = 1;
  }

  Writers writers;
  for (size_t s = 0; s < steps.size(); ++s) {
    for (uint32_t place : steps[s].writes) writers.add(place, static_cast<int32_t>(s));
  }
  Graph graph;
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].after >= 0) graph.add(steps[s].after, static_cast<int32_t>(s));
    for (uint32_t place : steps[s].reads) {
      for (int32_t w = writers.first(place); w >= 0; w = writers.after(w)) {
        graph.add(writers.at(w), static_cast<int32_t>(s));
      }
    }
  }
  // The ranks must meet in one order, whatever each of them could do earlier.
  int32_t previous = -1;
  for (size_t s = 0; s < steps.size(); ++s) {  // Library steps are in the order of the module.
    if (!steps[s].collective) continue;
    if (previous >= 0) graph.add(previous, static_cast<int32_t>(s));
    previous = static_cast<int32_t>(s);
  }
  std::vector<int32_t> order;
  if (aliased) {
    // Whoever reads the parameter comes before whoever overwrites it.
    Graph strict = graph;
    Writers readers;  // Of parameters.
    for (size_t s = 0; s < steps.size(); ++s) {
      for (uint32_t place : steps[s].reads) readers.add(place, static_cast<int32_t>(s));
    }
    // Steps that write each result: by the place that is its home.
    Writers result_writers;
    for (size_t s = 0; s < steps.size(); ++s) {
      for (uint32_t place : steps[s].writes) {
        const Home& home = f.home(place);
        if (home.valid && home.kind == BufferRef::Kind::Result) {
          result_writers.add(home.index, static_cast<int32_t>(s));
        }
      }
    }
    for (uint32_t r = 0; r < results; ++r) {
      if (direct[r] == 0 || redirected[r] != 0) continue;
      const ValueId parameter =
          module.parameters()[static_cast<size_t>(module.results()[r].alias)].value;
      int writing = 0;
      bool also_reads = false;
      for (int32_t w = result_writers.first(r); w >= 0; w = result_writers.after(w)) ++writing;
      for (int32_t p = readers.first(parameter); p >= 0; p = readers.after(p)) {
        for (int32_t w = result_writers.first(r); w >= 0; w = result_writers.after(w)) {
          also_reads = also_reads || readers.at(p) == result_writers.at(w);
          strict.add(readers.at(p), result_writers.at(w));
        }
      }
      // One of several writers would find the other's elements.
      if (also_reads && writing > 1) redirected[r] = 1;
    }
    if (!order_steps(steps, strict, &order)) {
      for (uint32_t r = 0; r < results; ++r) {
        if (direct[r] != 0) redirected[r] = 1;
      }
      order.clear();
    }
  }
  if (order.empty() && !order_steps(steps, graph, &order)) {
    NEURON_ASSERT(false, "fusion made steps that wait for each other");
  }
  std::vector<PlannedStep> sorted;
  sorted.reserve(steps.size() + results);
  for (int32_t s : order) sorted.push_back(std::move(steps[static_cast<size_t>(s)]));
  steps = std::move(sorted);
  for (uint32_t r = 0; r < results; ++r) {
    if (redirected[r] != 0) redirect(f, builder, plan, r);
  }

  // Runs of steps that do not depend on each other.
  const size_t places = module.size() + results;
  std::vector<int32_t> written(places, -1), read(places, -1);
  size_t begin = 0;
  int32_t next_group = 0;
  auto close = [&](size_t end) {
    if (end - begin >= 2) {
      for (size_t s = begin; s < end; ++s) steps[s].parallel_group = next_group;
      ++next_group;
    }
    begin = end;
  };
  for (size_t s = 0; s < steps.size(); ++s) {
    bool depends = steps[s].after >= 0 || steps[s].collective ||
                   (s > 0 && steps[s - 1].collective) ||
                   (s > 0 && steps[s].last != steps[s - 1].last);
    for (uint32_t place : steps[s].reads) {
      depends = depends || (place < places && written[place] >= static_cast<int32_t>(begin));
    }
    for_each_buffer(steps[s], [&](BufferRef& ref) {
      if (ref.kind == BufferRef::Kind::Result && module.results()[ref.index].alias >= 0) {
        const ValueId p =
            module.parameters()[static_cast<size_t>(module.results()[ref.index].alias)].value;
        depends = depends || read[p] >= static_cast<int32_t>(begin);
      }
    });
    if (depends) close(s);
    for (uint32_t place : steps[s].reads) {
      if (place < places) read[place] = static_cast<int32_t>(s);
    }
    for (uint32_t place : steps[s].writes) {
      if (place < places) written[place] = static_cast<int32_t>(s);
    }
  }
  close(steps.size());
}

namespace {

/// The place whose dying value step `s` may overwrite with the value of `place`, element by
/// element, or kNone. `last` tells the last step that uses a place.
uint32_t overwritable(const PlannedStep& step, uint32_t place, int32_t s,
                      const std::vector<int32_t>& last) {
  if (step.library || step.nest.column_reduce || !step.nest.row_stores.empty()) return kNone;
  const Access* store = nullptr;
  for (size_t k = 0; k < step.nest.sweeps.size(); ++k) {
    for (const Store& candidate : step.nest.sweeps[k].stores) {
      const BufferRef& ref = step.pointers[candidate.access.pointer];
      if (ref.kind != BufferRef::Kind::Arena || ref.index != place) continue;
      // A row written before the last sweep could be read again.
      if (store != nullptr || k + 1 != step.nest.sweeps.size()) return kNone;
      store = &candidate.access;
    }
  }
  if (store == nullptr) return kNone;
  uint32_t found = kNone;
  for (const Sweep& sweep : step.nest.sweeps) {
    for (const Stmt& load : sweep.body) {
      if (load.kind != StmtKind::Load && load.kind != StmtKind::Gather) continue;
      const BufferRef& ref = step.pointers[load.access.pointer];
      if (ref.kind != BufferRef::Kind::Arena || ref.index == found || last[ref.index] != s)
        continue;
      // Every read of it must be at the very element that is written.
      bool fits = true;
      for (const Sweep& other_sweep : step.nest.sweeps) {
        for (const Stmt& other : other_sweep.body) {
          if (other.kind != StmtKind::Load && other.kind != StmtKind::Gather &&
              other.kind != StmtKind::Buffered) {
            continue;
          }
          if (other.kind == StmtKind::Buffered && other.access.kind.empty()) continue;
          const BufferRef& from = step.pointers[other.access.pointer];
          if (from.kind != BufferRef::Kind::Arena || from.index != ref.index) continue;
          fits = fits && other.kind == StmtKind::Load &&
                 from.offset == step.pointers[store->pointer].offset &&
                 other.access.stride == store->stride &&
                 size_of(other.access.stored) == size_of(store->stored);
        }
        for (const Store& other : other_sweep.stores) {
          const BufferRef& to = step.pointers[other.access.pointer];
          fits = fits && (to.kind != BufferRef::Kind::Arena || to.index != ref.index);
        }
      }
      if (fits) found = ref.index;
    }
  }
  return found;
}

}  // namespace

int64_t plan_memory(const Fusion& f, Plan* plan) {
  constexpr int64_t kLine = 64;
  struct Block {
    int64_t bytes = 0;
    int32_t first = -1, last = -1;
    int64_t offset = 0;
  };
  std::vector<uint32_t> order;  // Places by first use.
  std::vector<Block> blocks;
  // Steps of one parallel group count as one moment.
  std::vector<PlannedStep>& steps = plan->steps;
  std::vector<int32_t> end_of(steps.size());
  std::vector<int32_t> start_of(steps.size());
  bool any = false;
  std::vector<int32_t> last_step, first_step;
  std::vector<uint8_t> shared;  // Used by several steps of one moment.
  for (size_t s = 0; s < steps.size(); ++s) {
    const bool joined = s > 0 && steps[s].parallel_group >= 0 &&
                        steps[s].parallel_group == steps[s - 1].parallel_group;
    start_of[s] = joined ? start_of[s - 1] : static_cast<int32_t>(s);
    for_each_buffer(steps[s], [&](BufferRef& ref) {
      if (ref.kind != BufferRef::Kind::Arena) return;
      any = true;
      if (ref.index >= blocks.size()) {
        blocks.resize(ref.index + 1);
        last_step.resize(ref.index + 1, -1);
        first_step.resize(ref.index + 1, -1);
        shared.resize(ref.index + 1, 0);
      }
      if (first_step[ref.index] < 0) first_step[ref.index] = static_cast<int32_t>(s);
      if (last_step[ref.index] >= start_of[s] && last_step[ref.index] != static_cast<int32_t>(s)) {
        shared[ref.index] = 1;
      }
      last_step[ref.index] = static_cast<int32_t>(s);
      Block& block = blocks[ref.index];
      if (block.first < 0) {
        block.first = start_of[s];
        block.bytes = (f.place_bytes(ref.index) + kLine - 1) / kLine * kLine;
        order.push_back(ref.index);
      }
      block.last = start_of[s];
    });
  }
  if (!any) return 0;
  // In order of time: free what ended before, then take the smallest hole that fits.
  struct Hole {
    int64_t offset, bytes;
  };
  std::vector<Hole> holes;
  std::vector<uint32_t> live;
  int64_t top = 0;
  auto release = [&](const Block& block) {
    if (block.bytes == 0) return;
    size_t at = 0;
    while (at < holes.size() && holes[at].offset < block.offset) ++at;
    holes.insert(holes.begin() + static_cast<ptrdiff_t>(at), {block.offset, block.bytes});
    if (at + 1 < holes.size() && holes[at].offset + holes[at].bytes == holes[at + 1].offset) {
      holes[at].bytes += holes[at + 1].bytes;
      holes.erase(holes.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
    if (at > 0 && holes[at - 1].offset + holes[at - 1].bytes == holes[at].offset) {
      holes[at - 1].bytes += holes[at].bytes;
      holes.erase(holes.begin() + static_cast<ptrdiff_t>(at));
    }
  };
  int32_t now = -1;
  for (uint32_t place : order) {
    Block& block = blocks[place];
    if (block.first != now) {
      now = block.first;
      size_t kept = 0;
      for (uint32_t other : live) {
        if (blocks[other].last < now) {
          release(blocks[other]);
        } else {
          live[kept++] = other;
        }
      }
      live.resize(kept);
    }
    const int32_t step = first_step[place];
    const uint32_t over = overwritable(steps[static_cast<size_t>(step)], place, step, last_step);
    if (over != kNone && shared[over] == 0 && blocks[over].bytes == block.bytes) {
      const auto at = std::find(live.begin(), live.end(), over);
      if (at != live.end()) {
        block.offset = blocks[over].offset;
        *at = place;
        continue;
      }
    }
    size_t best = holes.size();
    for (size_t h = 0; h < holes.size(); ++h) {
      if (holes[h].bytes >= block.bytes &&
          (best == holes.size() || holes[h].bytes < holes[best].bytes)) {
        best = h;
      }
    }
    if (best < holes.size()) {
      block.offset = holes[best].offset;
      holes[best].offset += block.bytes;
      holes[best].bytes -= block.bytes;
      if (holes[best].bytes == 0) holes.erase(holes.begin() + static_cast<ptrdiff_t>(best));
    } else if (!holes.empty() && holes.back().offset + holes.back().bytes == top) {
      block.offset = holes.back().offset;
      top = block.offset + block.bytes;
      holes.pop_back();
    } else {
      block.offset = top;
      top += block.bytes;
    }
    live.push_back(place);
  }
  for (PlannedStep& step : steps) {
    for_each_buffer(step, [&](BufferRef& ref) {
      if (ref.kind != BufferRef::Kind::Arena) return;
      ref.offset += blocks[ref.index].offset;
      ref.index = 0;
    });
  }
  return top;
}

}  // namespace neuron::compiler::cpu
