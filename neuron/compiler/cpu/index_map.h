#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "neuron/base/shape.h"
#include "neuron/hlo/module.h"

// Index maps: where in a value a fused loop reads, as affine expressions of the loop's axes. View
// ops change the map with which their operand is read and cost nothing else.
namespace neuron::compiler::cpu {

/// Enough for every axis of a group and two variables.
inline constexpr int kMaxTerms = 14;
inline constexpr size_t kMaxAxes = 12;
/// Axis numbers from here on are variables: integers computed in the loop (gather indices).
inline constexpr uint16_t kFirstVariable = 0x100;

/// offset + sum(axis * coefficient); terms are sorted by axis, coefficients are not zero.
struct Affine {
  int64_t offset = 0;
  uint16_t count = 0;
  uint16_t axis[kMaxTerms];
  int64_t coefficient[kMaxTerms];

  /// False if there are too many terms.
  bool add_term(uint16_t axis_number, int64_t value);
  /// Adds `other` times `scale`.
  bool add(const Affine& other, int64_t scale = 1);
  /// Coefficient of an axis; 0 if absent.
  int64_t of(uint16_t axis_number) const;
  bool is_constant() const { return count == 0; }
  bool has_variable() const { return count > 0 && axis[count - 1] >= kFirstVariable; }
  friend bool operator==(const Affine& a, const Affine& b);
};

/// Smallest and largest value over the axes' extents; false if a variable takes part.
bool range_of(const Affine& e, DimsRef extents, int64_t* low, int64_t* high);

/// What mapping through a view needs before it can succeed.
struct MapStep {
  enum class Status : uint8_t {
    Ok,
    Refine,  // split `axis` into (extent / factor, factor) and try again
    Fail,    // not affine
  } status = Status::Ok;
  uint16_t axis = 0;
  int64_t factor = 0;
};

/// Map of the operand of a reshape from `from` (the operand's dims) to `to`, read at `map`.
MapStep map_reshape(DimsRef from, DimsRef to, const Affine* map, DimsRef extents, Affine* result);

/// Map of operand `index` of a view op that is read at `map`. Pad and Concatenate give the map
/// without regard to bounds: the caller masks. AsStrided gives a map over the flat operand (one
/// expression).
MapStep map_view(const hlo::Module& module, const hlo::Node& node, size_t index, const Affine* map,
                 DimsRef extents, SmallVector<Affine, 4>* result);

/// Strides with which a buffer of `from` dims and `strides` is read as `to` dims, or false if that
/// takes more than one stride per dim.
bool reshape_strides(DimsRef from, DimsRef strides, DimsRef to, Dims* result);

}  // namespace neuron::compiler::cpu
