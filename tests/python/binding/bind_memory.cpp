#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <type_traits>

#include "bindings.h"
#include "mezzo/amp/checkpoint.h"
#include "mezzo/text/train/settings.h"
#include "mezzo/text/train/trainer.h"
#include "text/machine/machine_memory.h"
#include "text/models/checkpointed.h"
#include "text/models/lora.h"
#include "text/train/memory_estimate.h"

namespace {

using namespace mezzo::text;
using py::literals::operator""_a;

/// Counts the bytes of CPU tensors that this thread, and autograd for it, makes while it lives.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    const std::lock_guard lock(mutex_);
    live_ += size;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }

 private:
  std::mutex mutex_;
  int64_t live_ = 0, peak_ = 0;
};

class LiveBytesContext {
 public:
  void enter() { guard_ = std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, counter_); }
  void exit() { guard_.reset(); }
  const LiveBytes& counter() const { return *counter_; }

 private:
  std::shared_ptr<LiveBytes> counter_ = std::make_shared<LiveBytes>();
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

/// Settings by the names of their flags, with underscores.
TrainConfig to_config(const py::dict& settings) {
  TrainConfig config;
  config.quiet = true;
  config.eval_every = StepInterval();
  config.dev_ratio = 0;
  visit_settings(config, [&](const Setting& setting, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    std::string name(setting.name());
    std::replace(name.begin(), name.end(), '-', '_');
    if (settings.contains(name)) {
      if constexpr (std::is_same_v<Field, std::filesystem::path>) {
        field = settings[name.c_str()].template cast<std::string>();
      } else if constexpr (std::is_same_v<Field, std::vector<std::filesystem::path>>) {
        field = {settings[name.c_str()].template cast<std::string>()};
      } else if constexpr (std::is_same_v<Field, StepInterval> || std::is_same_v<Field, std::optional<StepInterval>>) {
        field = StepInterval::parse(name, py::str(settings[name.c_str()]));
      } else {
        field = settings[name.c_str()].template cast<Field>();
      }
    }
  });
  return config;
}

}  // namespace

void bind_memory(py::module_& m) {
  py::class_<LiveBytesContext>(m, "LiveBytes")
      .def(py::init<>())
      .def("__enter__", [](LiveBytesContext& self) -> LiveBytesContext& { return self.enter(), self; })
      .def("__exit__", [](LiveBytesContext& self, const py::args&) { self.exit(); })
      .def_property_readonly("live", [](const LiveBytesContext& self) { return self.counter().live(); })
      .def_property_readonly("peak", [](const LiveBytesContext& self) { return self.counter().peak(); });
  m.def(
      "checkpoint",
      [](const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
         const std::vector<at::Tensor>& inputs, bool preserve_rng_state) {
        return mezzo::checkpoint(mezzo::CheckpointOptions().preserve_rng_state(preserve_rng_state), function, inputs);
      },
      py::arg("function"), py::arg("inputs"), py::arg("preserve_rng_state") = true);
  m.def("checkpointed", &checkpointed, py::arg("segment"), py::arg("inputs"), py::arg("parameters"));
  m.def(
      "train",
      [](const py::dict& settings) {
        const TrainConfig config = to_config(settings);
        const py::gil_scoped_release no_gil;
        train(config, [] { return false; });
      },
      py::arg("settings"));
  m.def(
      "estimate_memory",
      [](const py::dict& settings, int ranks, int64_t rows, int64_t longest, int64_t labels) {
        const TrainConfig config = to_config(settings);
        const auto model = make_model(*ModelConfig::from_file(config.model_config), {.num_outputs = labels});
        if (config.lora > 0) add_lora(*model, {.rank = config.lora, .dropout = config.lora_dropout}, 0, {}, {});
        const auto estimate = estimate_memory(*model, parse_precision(config.precision, at::kCPU), config, ranks,
                                              {.rows = rows, .longest = longest});
        return py::dict("weights"_a = estimate.weights, "optimizer"_a = estimate.optimizer,
                        "gradients"_a = estimate.gradients, "activations"_a = estimate.activations,
                        "total"_a = estimate.total);
      },
      py::arg("settings"), py::arg("ranks"), py::arg("rows"), py::arg("longest"), py::arg("labels") = 2);
  m.def(
      "machine_memory",
      [](const std::string& root) {
        const auto memory = machine_memory(at::kCPU, root);
        return std::make_tuple(memory.total, memory.available, memory.source);
      },
      py::arg("root") = "/");
}
