#include "text/models/onnx_graph.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/version.h"

// Numbers of fields and of types come from onnx.proto, IR version 8.

namespace mezzo::text::onnx {
namespace {

constexpr int64_t kIrVersion = 8;

int64_t type_number(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return 1;
    case at::kLong: return 7;
    case at::kBool: return 9;
    case at::kHalf: return 10;
    default: TORCH_INTERNAL_ASSERT(false, "no dtype of a graph: ", dtype);
  }
}

/// ValueInfoProto
ProtobufWriter value_info(const std::string& name, at::ScalarType dtype, const std::vector<Dim>& dims) {
  ProtobufWriter shape;
  for (const Dim& dim : dims) {
    ProtobufWriter size;
    if (dim.name.empty()) {
      size.integer(1, dim.size);
    } else {
      size.string(2, dim.name);
    }
    shape.message(1, size);
  }
  ProtobufWriter tensor;
  tensor.integer(1, type_number(dtype));
  tensor.message(2, shape);
  ProtobufWriter type;
  type.message(1, tensor);
  ProtobufWriter info;
  info.string(1, name);
  info.message(2, type);
  return info;
}

/// AttributeProto
ProtobufWriter attribute_message(const Attribute& attribute) {
  constexpr int64_t kFloat = 1, kInt = 2, kInts = 7;
  ProtobufWriter message;
  message.string(1, attribute.name);
  if (const auto* integer = std::get_if<int64_t>(&attribute.value)) {
    message.integer(3, *integer);
    message.integer(20, kInt);
  } else if (const auto* number = std::get_if<double>(&attribute.value)) {
    message.float32(2, static_cast<float>(*number));
    message.integer(20, kFloat);
  } else {
    for (const int64_t value : std::get<std::vector<int64_t>>(attribute.value)) message.integer(8, value);
    message.integer(20, kInts);
  }
  return message;
}

}  // namespace

Value Graph::lowest() {
  return constant(dtype_ == at::kHalf ? -65504.0 : static_cast<double>(std::numeric_limits<float>::lowest()));
}

Value Graph::input(std::string name, const std::vector<Dim>& dims) {
  inputs_.message(11, value_info(name, at::kLong, dims));
  return name;
}

void Graph::output(std::string name, const Value& value, const std::vector<Dim>& dims) {
  ProtobufWriter node;  // its name is the user's
  node.string(1, cast(value, at::kFloat));
  node.string(2, name);
  node.string(4, "Identity");
  nodes_.message(1, node);
  outputs_.message(12, value_info(name, at::kFloat, dims));
}

Value Graph::constant(const at::Tensor& tensor) {
  const auto known = names_.find(tensor.const_data_ptr());
  const std::string name = known == names_.end() ? "constant" : known->second;
  const std::string key = fmt::format("{} {} {}", tensor.const_data_ptr(), fmt::join(tensor.sizes(), ","),
                                      fmt::join(tensor.strides(), ","));
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  return known_[key] = add_constant(name, tensor.detach());
}

Value Graph::constant(const std::vector<int64_t>& values) {
  const std::string key = fmt::format("ints {}", fmt::join(values, ","));
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  return known_[key] = add_constant("sizes", at::tensor(values, at::kLong));
}

Value Graph::constant(double value) {
  const std::string key = fmt::format("number {}", value);
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  return known_[key] = add_constant("number", at::scalar_tensor(value, at::kFloat));
}

Value Graph::integer(int64_t value) {
  const std::string key = fmt::format("integer {}", value);
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  return known_[key] = add_constant("integer", at::scalar_tensor(value, at::kLong));
}

/// A name that others have already gets a number.
Value Graph::add_constant(std::string name, at::Tensor tensor) {
  const bool is_weight = name.find('.') != std::string::npos;
  const bool is_taken = std::ranges::find(constants_, name, &Constant::name) != constants_.end();
  if (!is_weight || is_taken) name += fmt::format("_{}", constants_.size());
  constants_.push_back({name, std::move(tensor)});
  return name;
}

Value Graph::node(std::string_view op, const std::vector<Value>& inputs, const std::vector<Attribute>& attributes) {
  const Value output = fmt::format("{}_{}", op, num_nodes_++);
  ProtobufWriter message;
  for (const Value& input : inputs) message.string(1, input);
  message.string(2, output);
  message.string(3, output);
  message.string(4, op);
  for (const Attribute& attribute : attributes) message.message(5, attribute_message(attribute));
  nodes_.message(1, message);
  return output;
}

Value Graph::cast(const Value& x, at::ScalarType dtype) { return node("Cast", {x}, {{"to", type_number(dtype)}}); }

int64_t Graph::save(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata) const {
  struct Block {
    std::string head;  // of a TensorProto, as a field of the graph; its numbers follow
    at::Tensor tensor;
  };
  const auto dtype_of = [&](const at::Tensor& tensor) {
    return tensor.is_floating_point() ? dtype_ : tensor.scalar_type();
  };
  std::vector<Block> blocks;
  uint64_t graph_size = nodes_.bytes().size() + inputs_.bytes().size() + outputs_.bytes().size();
  for (const auto& [name, tensor] : constants_) {
    const at::ScalarType dtype = dtype_of(tensor);
    const uint64_t bytes = static_cast<uint64_t>(tensor.numel()) * c10::elementSize(dtype);
    ProtobufWriter fields;
    for (const int64_t size : tensor.sizes()) fields.integer(1, size);
    fields.integer(2, type_number(dtype));
    fields.string(8, name);
    fields.announce(9, bytes);
    ProtobufWriter head;
    head.announce(5, fields.bytes().size() + bytes);
    blocks.push_back({head.bytes() + fields.bytes(), tensor});
    graph_size += blocks.back().head.size() + bytes;
  }
  ProtobufWriter name_of_graph;
  name_of_graph.string(2, "mezzo");
  graph_size += name_of_graph.bytes().size();
  ProtobufWriter opset;
  opset.string(1, "");
  opset.integer(2, kOpset);
  ProtobufWriter model;
  model.integer(1, kIrVersion);
  model.message(8, opset);
  model.string(2, "mezzo");
  model.string(3, MEZZO_VERSION);
  for (const auto& [name, text] : metadata) {
    ProtobufWriter entry;
    entry.string(1, name);
    entry.string(2, text);
    model.message(14, entry);
  }
  model.announce(7, graph_size);
  const uint64_t total = model.bytes().size() + graph_size;
  TORCH_CHECK_VALUE(total < uint64_t{1} << 31, file.string(), ": the model has ", total,
                    " bytes, and one file of ONNX holds 2 GiB at most",
                    dtype_ == at::kFloat ? "; try --precision fp16" : "");
  AtomicFile out(file);
  out.write(model.bytes());
  out.write(name_of_graph.bytes());
  out.write(nodes_.bytes());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [head, tensor] = blocks[i];
    const at::Tensor numbers = tensor.to(dtype_of(tensor)).contiguous();
    TORCH_CHECK_VALUE(dtype_ != at::kHalf || !numbers.is_floating_point() || at::isfinite(numbers).all().item<bool>(),
                      file.string(), ": ", constants_[i].name,
                      " has a number beyond the range of fp16; use --precision fp32");
    out.write(head);
    out.write(numbers.const_data_ptr(), numbers.nbytes());
  }
  out.write(inputs_.bytes());
  out.write(outputs_.bytes());
  out.commit();
  return static_cast<int64_t>(total);
}

}  // namespace mezzo::text::onnx
