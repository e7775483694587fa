#include "amp/recorded_inputs.h"

namespace mezzo {
namespace {

/// The field itself: an explicit instantiation may name private members.
template <auto kInputs>
struct Reveal {
  friend c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& function) { return function.*kInputs; }
};

c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& function);
template struct Reveal<&at::RecordFunction::inputs_>;

}  // namespace

c10::ArrayRef<const c10::IValue> recorded_inputs(const at::RecordFunction& function) { return inputs_of(function); }

}  // namespace mezzo
