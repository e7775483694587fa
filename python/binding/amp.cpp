// The classes of torch.classes.mezzo behind mezzo.autocast, OpPolicy, CastLog, FiniteTracer, MasterWeights and
// advise_scale. A C++ scope is an object here: it begins when it is made, and ends with `close`, on the same thread.

#include <torch/custom_class.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "amp/dry_run.h"
#include "kernels/dtypes.h"
#include "kernels/operator.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"
#include "mezzo/amp/finite_tracer.h"
#include "mezzo/amp/master_weights.h"
#include "mezzo/amp/module_scope.h"
#include "mezzo/amp/op_policy.h"
#include "mezzo/amp/scale_advice.h"

namespace mezzo {
namespace {

using c10::intrusive_ptr;
using Entries = c10::impl::GenericDict;

/// A Python dict.
Entries make_entries() { return Entries(c10::StringType::get(), c10::AnyType::get()); }

/// A Python list of dicts, of what `entries_of` says of each.
template <class Items, class EntriesOf>
c10::IValue make_list(const Items& items, const EntriesOf& entries_of) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (const auto& item : items) {
    list.push_back(entries_of(item));
  }
  return list;
}

// --- policies and logs

struct PolicyHolder : torch::CustomClassHolder {
  explicit PolicyHolder(OpPolicy the_policy) : policy(std::move(the_policy)) {}
  OpPolicy policy;
};
using Policy = intrusive_ptr<PolicyHolder>;

std::optional<OpPolicy> value_of(const std::optional<Policy>& policy) {
  return policy ? std::optional((*policy)->policy) : std::nullopt;
}

struct LogHolder : torch::CustomClassHolder {
  CastLog log;
};
using Log = intrusive_ptr<LogHolder>;

struct AutocastRegion : torch::CustomClassHolder {
  AutocastRegion(const std::string& device_type,
                 at::ScalarType dtype,
                 bool enabled,
                 std::optional<bool> cache_enabled,
                 const std::optional<Policy>& policy,
                 std::optional<Log> the_log)
      : log(std::move(the_log)) {
    guard.emplace(c10::Device(device_type), dtype,
                  AutocastOptions()
                      .enabled(enabled)
                      .cache_enabled(cache_enabled)
                      .policy(value_of(policy))
                      .log(log ? &(*log)->log : nullptr));
  }

  std::optional<Log> log;  // which the guard writes to
  std::optional<AutocastGuard> guard;
};

struct DryRunHolder : torch::CustomClassHolder {
  DryRunHolder(Log the_log, const std::string& device_type, at::ScalarType dtype, const std::optional<Policy>& policy)
      : log(std::move(the_log)) {
    dry_run.emplace(log->log, c10::Device(device_type), dtype, value_of(policy));
  }

  Log log;
  std::optional<DryRun> dry_run;
};

struct ModuleScopeHolder : torch::CustomClassHolder {
  explicit ModuleScopeHolder(std::string the_name) : name(std::move(the_name)) { scope.emplace(name); }

  const std::string name;
  std::optional<ModuleScope> scope;
};

// --- values that are not finite

c10::IValue entries_of(const TracedTensor& tensor) {
  auto entries = make_entries();
  entries.insert("name", tensor.name);
  entries.insert("shape", tensor.shape);
  entries.insert("dtype", dtype_name(tensor.dtype));
  entries.insert("min", tensor.min);
  entries.insert("max", tensor.max);
  entries.insert("num_inf", tensor.num_inf);
  entries.insert("num_minus_inf", tensor.num_minus_inf);
  entries.insert("num_nan", tensor.num_nan);
  return entries;
}

c10::IValue entries_of(const NonFiniteOp& op) {
  const auto of_tensor = [](const TracedTensor& tensor) { return entries_of(tensor); };
  auto entries = make_entries();
  entries.insert("produced_here", op.produced_here);
  entries.insert("op", op.op);
  entries.insert("in_backward", op.in_backward);
  entries.insert("module", op.module);
  entries.insert("backward_node", op.backward_node);
  entries.insert("forward_op", op.forward_op);
  entries.insert("source", op.source);
  entries.insert("inputs", make_list(op.inputs, of_tensor));
  entries.insert("outputs", make_list(op.outputs, of_tensor));
  entries.insert("text", op.to_string());
  return entries;
}

struct TracerHolder : torch::CustomClassHolder {
  explicit TracerHolder(const std::vector<std::string>& ignore_ops) {
    tracer.emplace(FiniteTracerOptions().ignore_ops(ignore_ops));
  }

  /// Keeps the findings.
  void close() {
    found = first();
    tracer.reset();
  }
  std::optional<NonFiniteOp> first() const { return tracer ? tracer->first() : found; }

  std::optional<NonFiniteOp> found;
  std::optional<FiniteTracer> tracer;
};

// --- master weights

struct MasterWeightsHolder : torch::CustomClassHolder {
  MasterWeightsHolder(const std::vector<std::string>& names,
                      const std::vector<at::Tensor>& parameters,
                      const std::vector<int64_t>& norm_roles,
                      at::ScalarType dtype,
                      bool keep_norms_fp32)
      : masters(named(names, parameters, norm_roles), dtype, MasterWeightsOptions().keep_norms_fp32(keep_norms_fp32)) {}

  static std::vector<NamedParameter> named(const std::vector<std::string>& names,
                                           const std::vector<at::Tensor>& parameters,
                                           const std::vector<int64_t>& norm_roles) {
    std::vector<NamedParameter> result;
    for (size_t i = 0; i < names.size(); ++i) {
      result.push_back({names[i], parameters.at(i), /*half_copy=*/{}, static_cast<NormRole>(norm_roles.at(i))});
    }
    return result;
  }

  MasterWeights masters;
};
using Masters = intrusive_ptr<MasterWeightsHolder>;

// --- advice on the scale

struct AdviceHolder : torch::CustomClassHolder {
  AdviceHolder(const std::vector<std::string>& names,
               const std::vector<std::vector<at::Tensor>>& gradients,
               double gradients_scale,
               double scale) {
    std::vector<NamedGradients> groups;
    for (size_t i = 0; i < names.size(); ++i) {
      groups.push_back({names[i], gradients.at(i)});
    }
    advice = advise_scale(count_gradient_exponents(groups, gradients_scale), scale);
  }

  c10::IValue groups() const {
    return make_list(advice.groups, [&](const GradientExponents& group) {
      auto entries = make_entries();
      entries.insert("name", group.name);
      entries.insert("counts", std::vector<int64_t>(group.counts.begin(), group.counts.end()));
      entries.insert("zeros", group.zeros);
      entries.insert("non_finite", group.non_finite);
      entries.insert("largest", group.largest);
      entries.insert("lost", group.share_lost(advice.scale));
      entries.insert("subnormal", group.share_subnormal(advice.scale));
      entries.insert("headroom", group.headroom(advice.scale));
      return c10::IValue(entries);
    });
  }

  ScaleAdvice advice;
};
using Advice = intrusive_ptr<AdviceHolder>;

TORCH_LIBRARY_FRAGMENT(mezzo, m) {
  m.class_<PolicyHolder>("OpPolicy")
      .def(torch::init([](const std::optional<std::string>& preset) {
        return c10::make_intrusive<PolicyHolder>(preset ? OpPolicy::preset(*preset) : OpPolicy());
      }))
      .def("set", [](const Policy& self, const std::string& op,
                     const std::string& word) { self->policy.set(op, parse_cast_policy(word)); })
      .def("get",
           [](const Policy& self, const std::string& op) { return std::string(to_string(self->policy.get(op))); })
      .def("lines", [](const Policy& self) {
        std::vector<std::tuple<std::string, std::string>> lines;
        for (const auto& [op, policy] : self->policy.lines()) {
          lines.emplace_back(op, to_string(policy));
        }
        return lines;
      });
  m.class_<LogHolder>("CastLog")
      .def(torch::init<>())
      .def("to_table", [](const Log& self) { return self->log.to_table(); })
      .def("to_json", [](const Log& self) { return self->log.to_json(); })
      .def("clear", [](const Log& self) { self->log.clear(); });
  m.class_<AutocastRegion>("AutocastRegion")
      .def(torch::init<std::string, at::ScalarType, bool, std::optional<bool>, std::optional<Policy>,
                       std::optional<Log>>())
      .def("close", [](const intrusive_ptr<AutocastRegion>& self) { self->guard.reset(); });
  m.class_<DryRunHolder>("CastDryRun")
      .def(torch::init<Log, std::string, at::ScalarType, std::optional<Policy>>())
      .def("close", [](const intrusive_ptr<DryRunHolder>& self) { self->dry_run.reset(); });
  m.class_<ModuleScopeHolder>("ModuleScope")
      .def(torch::init<std::string>())
      .def("close", [](const intrusive_ptr<ModuleScopeHolder>& self) { self->scope.reset(); });

  m.class_<TracerHolder>("FiniteTracer")
      .def(torch::init<std::vector<std::string>>())
      .def("close", &TracerHolder::close)
      .def("first", [](const intrusive_ptr<TracerHolder>& self) {
        const auto first = self->first();
        return first ? entries_of(*first) : c10::IValue();
      });

  m.class_<MasterWeightsHolder>("MasterWeights")
      .def(torch::init<std::vector<std::string>, std::vector<at::Tensor>, std::vector<int64_t>, at::ScalarType, bool>())
      .def("masters",
           [](const Masters& self) {
             std::vector<std::tuple<std::string, at::Tensor, std::optional<at::Tensor>>> result;
             for (const NamedParameter& master : self->masters.masters()) {
               result.emplace_back(master.name, master.tensor, kernels::if_defined(master.half_copy));
             }
             return result;
           })
      .def("accumulate_gradients", [](const Masters& self) { self->masters.accumulate_gradients(); })
      .def("copy_to_model", [](const Masters& self) { self->masters.copy_to_model(); })
      .def("to_float32", [](const Masters& self) { self->masters.to_float32(); })
      .def("state_dict",
           [](const Masters& self) {
             c10::Dict<std::string, at::Tensor> state;
             for (const auto& [name, tensor] : self->masters.state_dict()) {
               state.insert(name, tensor);
             }
             return state;
           })
      .def("load_state_dict", [](const Masters& self, const c10::Dict<std::string, at::Tensor>& state) {
        std::map<std::string, at::Tensor> entries;
        for (const auto& entry : state) {
          entries.emplace(entry.key(), entry.value());
        }
        self->masters.load_state_dict(entries);
      });

  m.class_<AdviceHolder>("ScaleAdvice")
      .def(torch::init<std::vector<std::string>, std::vector<std::vector<at::Tensor>>, double, double>())
      .def("recommended_scale", [](const Advice& self) { return self->advice.recommended_scale; })
      .def("needs_scale", [](const Advice& self) { return self->advice.needs_scale; })
      .def("objection", [](const Advice& self) { return self->advice.objection(); })
      .def("to_string", [](const Advice& self) { return self->advice.to_string(); })
      .def("groups", &AdviceHolder::groups);
  m.def("autocast_cache_size() -> int", [] { return static_cast<int64_t>(autocast_cache_size()); });
}

}  // namespace
}  // namespace mezzo
