#include <algorithm>
#include <limits>
#include <sstream>

#include "kernels/dtypes.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo {
namespace {

void write_place(std::ostream& out, const NonFiniteOp& op) {
  out << (op.in_backward ? " in backward" : " in forward");
  if (!op.backward_node.empty() && op.backward_node != op.op) {
    out << ", at " << op.backward_node;
  }
  if (!op.forward_op.empty()) {
    out << ", the gradient of " << op.forward_op;
  }
  if (!op.module.empty()) {
    out << ", in module " << op.module;
  }
  out << '\n';
}

/// A cast is named by its dtypes and the op of its input: the op of a cast, aten::copy_, tells neither.
std::string subject(const NonFiniteOp& op) {
  const bool is_cast = op.produced_here && (op.op == "aten::copy_" || op.op == "aten::_to_copy") &&
                       op.inputs.size() == 1 && op.outputs.size() == 1 && op.inputs[0].dtype != op.outputs[0].dtype;
  if (!is_cast) {
    return op.op;
  }
  std::ostringstream out;
  out << "a cast from " << dtype_name(op.inputs[0].dtype) << " to " << dtype_name(op.outputs[0].dtype);
  if (!op.source.empty()) {
    out << " of the result of " << op.source;
  }
  return out.str();
}

void write_count(std::ostream& out, int64_t count, const char* what) {
  if (count > 0) {
    out << ", " << count << " " << what;
  }
}

void write_tensor(std::ostream& out, const TracedTensor& tensor, size_t name_width) {
  out << "  " << tensor.name << std::string(name_width - std::min(name_width, tensor.name.size()), ' ') << "  "
      << dtype_name(tensor.dtype) << " " << at::IntArrayRef(tensor.shape);
  if (tensor.min <= tensor.max) {
    out << ", finite values from " << tensor.min << " to " << tensor.max;
  } else {
    out << ", no finite value";
  }
  write_count(out, tensor.num_inf, "inf");
  write_count(out, tensor.num_minus_inf, "-inf");
  write_count(out, tensor.num_nan, "NaN");
  out << '\n';
}

}  // namespace

std::string NonFiniteOp::to_string() const {
  std::ostringstream out;
  out << subject(*this)
      << (produced_here ? " produced inf or NaN" : " received inf or NaN, which no traced op had produced,");
  write_place(out, *this);
  size_t width = 0;
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const TracedTensor& tensor : *tensors) {
      width = std::max(width, tensor.name.size());
    }
  }
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const TracedTensor& tensor : *tensors) {
      write_tensor(out, tensor, width);
    }
  }
  const bool half_overflowed = produced_here && std::any_of(outputs.begin(), outputs.end(), [](const auto& tensor) {
                                 return tensor.dtype == at::kHalf && tensor.num_nan == 0;
                               });
  if (half_overflowed) {
    out << "  float16 holds at most " << std::numeric_limits<at::Half>::max() << '\n';
  }
  return out.str();
}

}  // namespace mezzo
