#include "mezzo/amp/op_policy.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <tuple>

#include "amp/op_policy_table.h"

namespace mezzo {
namespace {

constexpr std::array<std::string_view, 5> kPresetNames = {"cuda", "cpu", "cuda_2020", "norms_stay_low", "masks_fp32"};

/// The functions that torch.cuda.amp cast when it was new. Its "conv" family is one op each in
/// today's dispatcher.
constexpr std::string_view kLowerPrecision2020 =
    " aten::addbmm aten::addmm aten::addmv aten::addr aten::baddbmm aten::bmm aten::chain_matmul aten::conv1d "
    "aten::conv2d aten::conv3d aten::conv_transpose1d aten::conv_transpose2d.input aten::conv_transpose3d.input "
    "aten::linear aten::matmul aten::mm aten::mv aten::prelu ";

constexpr std::array<std::string_view, 3> kNormOps = {"aten::layer_norm", "aten::native_layer_norm", "aten::rms_norm"};

struct FunctionNames {
  std::mutex mutex;
  std::set<std::string, std::less<>> names;
};

FunctionNames& function_names() {
  static FunctionNames names;
  return names;
}

bool is_function(std::string_view name) {
  auto& known = function_names();
  const std::lock_guard lock(known.mutex);
  return known.names.contains(name);
}

std::string full_name(std::string_view op) {
  return op.find("::") == std::string_view::npos ? "aten::" + std::string(op) : std::string(op);
}

c10::OperatorName operator_name(const std::string& full) {
  const auto dot = full.find('.', full.find("::"));
  return {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)};
}

/// "; it has the overloads …" or nothing, to end a message about an unknown op.
std::string overloads_of(const std::string& full) {
  const std::string name = operator_name(full).name;
  std::string overloads;
  for (const auto& known : c10::Dispatcher::singleton().getAllOpNames()) {
    if (known.name == name) {
      overloads += (overloads.empty() ? "" : ", ") + c10::toString(known);
    }
  }
  return overloads.empty() ? "" : "; there are " + overloads;
}

c10::OperatorHandle existing_op(const std::string& full) {
  const auto op = find_op(full);
  TORCH_CHECK_VALUE(
      op, "OpPolicy: there is no op ", full, overloads_of(full),
      ". Name one as the dispatcher spells it, or load the library that defines it. A C++ function becomes an "
      "op by autocast_function.");
  return *op;
}

bool is_optional_dtype(const c10::Argument& argument) {
  return argument.name() == "dtype" && argument.type()->kind() == c10::TypeKind::OptionalType;
}

std::optional<size_t> optional_dtype_argument(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  const auto found = std::find_if(arguments.begin(), arguments.end(), is_optional_dtype);
  return found == arguments.end() ? std::nullopt : std::optional<size_t>(found - arguments.begin());
}

/// The overload with the arguments of `schema`, then `dtype`.
std::optional<c10::OperatorHandle> overload_with_dtype(const c10::FunctionSchema& schema) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name != schema.name()) {
      continue;
    }
    const auto op = dispatcher.findSchema(name);
    const auto& arguments = schema.arguments();
    if (!op || op->schema().is_mutable() || op->schema().arguments().size() != arguments.size() + 1 ||
        op->schema().arguments().back().name() != "dtype") {
      continue;
    }
    // Compared by name: an argument may be optional in one and required in the other.
    if (std::equal(arguments.begin(), arguments.end(), op->schema().arguments().begin(),
                   [](const auto& a, const auto& b) { return a.name() == b.name(); })) {
      return op;
    }
  }
  return std::nullopt;
}

OpPolicyEntryPoint entry_point(const c10::OperatorHandle& op, CastPolicy policy) {
  const auto& schema = op.schema();
  OpPolicyEntryPoint entry;
  entry.policy = policy;
  entry.op = c10::toString(op.operator_name());
  for (const auto& argument : schema.arguments()) {
    entry.is_optional.push_back(argument.type()->kind() == c10::TypeKind::OptionalType);
  }
  if (policy == CastPolicy::kUntouched || policy == CastPolicy::kBanned) {
    return entry;
  }
  TORCH_CHECK_VALUE(!schema.is_mutable(), "OpPolicy: ", entry.op,
                    " writes to its arguments, and a cast would make it write to a copy. Set the policy of the form "
                    "that returns its result.");
  if (policy == CastPolicy::kFloat32SetOptDtype) {
    entry.dtype_argument = optional_dtype_argument(schema);
    TORCH_CHECK_VALUE(entry.dtype_argument, "OpPolicy: ", entry.op, " has no optional dtype argument, which policy ",
                      to_string(policy), " sets. Use the policy fp32.");
  }
  if (policy == CastPolicy::kFloat32AppendDtype) {
    entry.with_dtype = overload_with_dtype(schema);
    TORCH_CHECK_VALUE(entry.with_dtype, "OpPolicy: ", entry.op,
                      " has no overload with an additional argument dtype. Policy ", to_string(policy),
                      " needs it. Use the policy fp32.");
  }
  return entry;
}

/// Every op that PyTorch autocasts, untouched.
std::shared_ptr<OpPolicyTable> empty_table() {
  static const auto table = [] {
    auto made = std::make_shared<OpPolicyTable>();
    for (const auto& [name, policy] : known_policies()) {
      if (const auto op = find_op(name)) {  // other versions of LibTorch may lack one
        made->ops[&op->schema()] = entry_point(*op, CastPolicy::kUntouched);
      }
    }
    return made;
  }();
  return table;
}

OpPolicy cuda_2020() {
  auto policy = OpPolicy::preset("cuda");
  for (const auto& [op, cast] : policy.lines()) {
    if (cast == CastPolicy::kLowerPrecision && kLowerPrecision2020.find(" " + op + " ") == std::string_view::npos) {
      policy.set(op, CastPolicy::kUntouched);
    }
  }
  return policy;
}

OpPolicy norms_stay_low() {
  auto policy = OpPolicy::preset("cuda");
  for (const auto op : kNormOps) {
    policy.set(op, CastPolicy::kUntouched);
  }
  return policy;
}

OpPolicy masks_fp32() {
  return OpPolicy::preset("cuda")
      .set("masked_fill.Scalar", CastPolicy::kFloat32)
      .set("masked_fill.Tensor", CastPolicy::kFloat32);
}

}  // namespace

std::optional<c10::OperatorHandle> find_op(const std::string& full) {
  return c10::Dispatcher::singleton().findSchema(operator_name(full));
}

std::shared_ptr<const OpPolicyTable> built_in_table(c10::DeviceType device_type) {
  const auto make = [](c10::DeviceType type) {
    auto table = std::make_shared<OpPolicyTable>(*table_of(OpPolicy::built_in(type)));
    table->is_built_in = true;
    return table;
  };
  static const auto cpu = make(c10::kCPU), cuda = make(c10::kCUDA);
  return device_type == c10::kCPU ? cpu : device_type == c10::kCUDA ? cuda : make(device_type);
}

void check_function_policy(std::string_view name, CastPolicy policy) {
  TORCH_CHECK_VALUE(policy != CastPolicy::kFloat32SetOptDtype && policy != CastPolicy::kFloat32AppendDtype,
                    "OpPolicy: ", to_string(policy), " is for ops with a dtype argument, and ", name,
                    " is a function. Use the policy fp32.");
}

void register_function_name(const std::string& name) {
  auto& known = function_names();
  const std::lock_guard lock(known.mutex);
  known.names.insert(name);
}

OpPolicy::OpPolicy() : table_(empty_table()) {}

std::span<const std::string_view> OpPolicy::preset_names() { return kPresetNames; }

OpPolicy OpPolicy::preset(std::string_view name) {
  static const OpPolicy cuda = built_in(c10::kCUDA), cpu = built_in(c10::kCPU);
  if (name == "cuda") return cuda;
  if (name == "cpu") return cpu;
  if (name == "cuda_2020") return cuda_2020();
  if (name == "norms_stay_low") return norms_stay_low();
  if (name == "masks_fp32") return masks_fp32();
  TORCH_CHECK_VALUE(false, "OpPolicy: there is no preset '", name, "': ", c10::Join(", ", kPresetNames));
}

OpPolicy OpPolicy::built_in(c10::DeviceType device_type) {
  OpPolicy policy;
  for (const auto& [op, cast] : autocast_ops(device_type)) {
    policy.set(op, cast);
  }
  return policy;
}

OpPolicy& OpPolicy::set(std::string_view op, CastPolicy policy) {
  if (is_function(op)) {
    check_function_policy(op, policy);
    own_table().functions[std::string(op)] = policy;
    return *this;
  }
  const auto handle = existing_op(full_name(op));
  auto entry = entry_point(handle, policy);
  own_table().ops[&handle.schema()] = std::move(entry);
  return *this;
}

/// The table to change: a copy, if other policies or guards hold this one.
OpPolicyTable& OpPolicy::own_table() {
  if (table_.use_count() > 1) {
    table_ = std::make_shared<OpPolicyTable>(*table_);
  }
  return *table_;
}

CastPolicy OpPolicy::get(std::string_view op) const {
  if (const auto function = table_->functions.find(op); function != table_->functions.end()) {
    return function->second;
  }
  const auto* entry = table_->find(existing_op(full_name(op)));
  return entry == nullptr ? CastPolicy::kUntouched : entry->policy;
}

std::vector<OpPolicyEntry> OpPolicy::lines() const {
  std::vector<OpPolicyEntry> lines;
  for (const auto& [schema, entry] : table_->ops) {
    lines.push_back({entry.op, entry.policy});
  }
  for (const auto& [name, policy] : table_->functions) {
    lines.push_back({name, policy});
  }
  std::erase_if(lines, [](const OpPolicyEntry& line) { return line.policy == CastPolicy::kUntouched; });
  std::sort(lines.begin(), lines.end(), [](const OpPolicyEntry& a, const OpPolicyEntry& b) {
    return std::tie(a.policy, a.op) < std::tie(b.policy, b.op);
  });
  return lines;
}

}  // namespace mezzo
