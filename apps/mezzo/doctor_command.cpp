#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "commands.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/machine/examination.h"

namespace mezzo::app {
namespace {

using Json = nlohmann::ordered_json;
using text::Examination, text::MachineAdvice;

std::string to_json(const Examination& machine, const MachineAdvice& advice) {
  auto products = Json::array(), problems = Json::array();
  for (const auto& [precision, measured, peak] : machine.products) {
    products.push_back(
        {{"precision", precision}, {"operations_per_second", measured}, {"peak", peak > 0 ? Json(peak) : Json()}});
  }
  for (const auto& [what, remedy] : advice.problems) problems.push_back({{"problem", what}, {"advice", remedy}});
  const Json json = {{"processor", machine.processor},
                     {"instructions", machine.instructions},
                     {"kernels", machine.kernels},
                     {"processors", machine.num_processors},
                     {"usable_processors", machine.num_usable},
                     {"quota", machine.quota > 0 ? Json(machine.quota) : Json()},
                     {"threads", machine.num_threads},
                     {"processor_share", machine.processor_share},
                     {"memory_bytes", machine.memory_bytes},
                     {"available_memory_bytes", machine.available_bytes},
                     {"shared_memory_bytes", machine.shared_memory_bytes},
                     {"copied_bytes_per_second", machine.copied_bytes},
                     {"products", std::move(products)},
                     {"libtorch", machine.libtorch},
                     {"libtorch_has_cuda", machine.libtorch_has_cuda},
                     {"gpus", machine.gpus},
                     {"precision",
                      {{"train", advice.precision},
                       {"why", advice.reason},
                       {"predict", advice.prediction},
                       {"why_predict", advice.prediction_reason}}},
                     {"problems", std::move(problems)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

double giga(auto number) { return 1e-9 * static_cast<double>(number); }

std::string to_text(const Examination& machine, const MachineAdvice& advice) {
  std::string text;
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<12}{}\n", name, value);
  };
  line("Processor",
       fmt::format("{}; {} of {} processors usable{}, {} {}",
                   machine.processor.empty() ? "of no name" : machine.processor, machine.num_usable,
                   machine.num_processors, machine.quota > 0 ? fmt::format(", {:.3g} at a time", machine.quota) : "",
                   machine.num_threads, machine.num_threads == 1 ? "thread" : "threads"));
  line("", fmt::format("{}; kernels for {}", fmt::join(machine.instructions, " "), machine.kernels));
  line("Memory", fmt::format("{:.1f} GB, {:.1f} GB free ({}); {:.1f} GB/s read and written; /dev/shm {:.1f} GB",
                             giga(machine.memory_bytes), giga(machine.available_bytes), machine.memory_source,
                             giga(machine.copied_bytes), giga(machine.shared_memory_bytes)));
  line("LibTorch", fmt::format("{}, {}", machine.libtorch, machine.libtorch_has_cuda ? "for CUDA" : "for the CPU"));
  line("GPUs", machine.gpus.empty() ? "none" : fmt::format("{}", fmt::join(machine.gpus, ", ")));
  text += "\nProducts    GFLOP/s   in registers   share\n";
  for (const auto& [precision, measured, peak] : machine.products) {
    text += fmt::format("{:<12}{:>7.0f}", precision, giga(measured));
    if (peak > 0) text += fmt::format("{:>15.0f}{:>6.0f} %", giga(peak), 100 * measured / peak);
    text += "\n";
  }
  text += "\n";
  line("Training", fmt::format("--precision {}: {}", advice.precision, advice.reason));
  line("Prediction", fmt::format("--precision {}: {}", advice.prediction, advice.prediction_reason));
  if (!machine.gpus.empty()) line("", "on a GPU, --precision auto depends on the GPU");
  text += advice.problems.empty() ? "\nNothing is wrong with this machine.\n" : "\nWhat is wrong:\n";
  for (const auto& [what, remedy] : advice.problems)
    text += fmt::format("- {}. {}.\n", what, static_cast<char>(std::toupper(remedy.front())) + remedy.substr(1));
  return text;
}

}  // namespace

Run add_doctor(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "print a JSON object");
  app.footer(
      "Examples:\n"
      "  mezzo doctor\n"
      "  mezzo doctor --json");
  return [json] {
    const auto machine = text::examine();
    const auto advice = text::advice_of(machine);
    text::write_stdout(*json ? to_json(machine, advice) : to_text(machine, advice));
    return 0;
  };
}

}  // namespace mezzo::app
