#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/io/protobuf.h"

namespace mezzo::text::onnx {

/// The operator set that graphs are written in: the first with LayerNormalization.
constexpr int64_t kOpset = 17;

/// A value of a graph, by its name.
using Value = std::string;
/// A dimension: its size, or its name if the size is known only when the graph runs.
struct Dim {
  int64_t size = 0;
  std::string name = {};
};

struct Attribute {
  std::string_view name;
  std::variant<int64_t, double, std::vector<int64_t>> value;
};

/// A graph of ONNX operators, node after node, that computes in float32 or in float16.
class Graph {
 public:
  /// @param dtype  kFloat or kHalf: of numbers that are not integers.
  /// @param names  what to call constants, by their tensors.
  Graph(at::ScalarType dtype, std::map<const void*, std::string> names) : dtype_(dtype), names_(std::move(names)) {}

  at::ScalarType dtype() const { return dtype_; }
  /// The smallest number of that dtype.
  Value lowest();

  Value input(std::string name, const std::vector<Dim>& dims);  ///< int64
  void output(std::string name, const Value& value, const std::vector<Dim>& dims);

  /// A constant tensor, converted to the graph's dtype if it is floating-point. It is read when the graph is saved.
  Value constant(const at::Tensor& tensor);
  Value constant(const std::vector<int64_t>& values);  ///< [values]
  Value constant(double value);                        ///< 0-dim, of the graph's dtype
  Value integer(int64_t value);                        ///< 0-dim

  /// The first output of a new node.
  Value node(std::string_view op, const std::vector<Value>& inputs, const std::vector<Attribute>& attributes = {});

  Value add(const Value& a, const Value& b) { return node("Add", {a, b}); }
  Value sub(const Value& a, const Value& b) { return node("Sub", {a, b}); }
  Value mul(const Value& a, const Value& b) { return node("Mul", {a, b}); }
  Value matmul(const Value& a, const Value& b) { return node("MatMul", {a, b}); }
  Value transpose(const Value& x, const std::vector<int64_t>& order) {
    return node("Transpose", {x}, {{"perm", order}});
  }
  /// @param sizes  0 keeps a dimension, -1 takes the rest.
  Value reshape(const Value& x, const std::vector<int64_t>& sizes) { return node("Reshape", {x, constant(sizes)}); }
  Value unsqueeze(const Value& x, const std::vector<int64_t>& dims) { return node("Unsqueeze", {x, constant(dims)}); }
  Value gather(const Value& x, const Value& indices, int64_t dim) {
    return node("Gather", {x, indices}, {{"axis", dim}});
  }
  Value cast(const Value& x, at::ScalarType dtype);

  /// Writes the model. Atomic: the file is complete or untouched.
  /// @param metadata  pairs of texts for the program that loads it.
  /// @throws c10::ValueError  for weights beyond float16, a model of more than protobuf's 2 GiB, or a file that cannot
  /// be
  ///   written.
  /// @return its bytes.
  int64_t save(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata) const;

 private:
  struct Constant {
    std::string name;
    at::Tensor tensor;
  };
  Value add_constant(std::string name, at::Tensor tensor);

  at::ScalarType dtype_;
  std::map<const void*, std::string> names_;
  std::vector<Constant> constants_;
  std::map<std::string, Value> known_;  // constants, by their contents
  ProtobufWriter nodes_, inputs_, outputs_;
  int64_t num_nodes_ = 0;
};

}  // namespace mezzo::text::onnx
