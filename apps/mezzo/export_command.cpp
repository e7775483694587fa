#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "command_line.h"
#include "commands.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/models/export_onnx.h"
#include "mezzo/text/models/pretrained.h"
#include "model_session.h"

namespace mezzo::app {
namespace {

using Json = nlohmann::ordered_json;

struct ExportFlags {
  ModelFlags model;
  std::filesystem::path onnx;
  bool json = false;
};

/// What an answer is made of logits by, which the graph itself does not say.
std::map<std::string, std::string> metadata_of(const text::ModelConfig& config, int64_t max_length) {
  return {{"model_type", std::string(config.model_type())},
          {"problem_type", config.problem_type},
          {"labels", Json(config.label_names).dump()},
          {"max_length", std::to_string(max_length)}};
}

int run_export(const ExportFlags& flags) {
  const ModelSession session(flags.model, nullptr, /*runs=*/false);
  const text::Classifier& classifier = session.classifier();
  const text::ModelConfig& config = classifier.model().config();
  if (!config.window_pooling.empty()) {
    std::fputs(
        "the model reads long texts in windows; the graph is of one window, and its user must pool the outputs\n",
        stderr);
  }
  const std::string damaged = text::first_not_finite(classifier.model());
  TORCH_CHECK(damaged.empty(), flags.model.model.string(), ": ", damaged,
              " holds inf or NaN; its file is damaged, or its training diverged");
  const auto written = text::export_onnx(classifier.model(), flags.onnx, classifier.precision(),
                                         metadata_of(config, classifier.max_length()));
  if (flags.json) {
    const Json json = {{"file", flags.onnx.string()},
                       {"inputs", written.inputs},
                       {"precision", to_string(classifier.precision())},
                       {"opset", written.opset},
                       {"bytes", written.bytes}};
    text::write_stdout(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    return 0;
  }
  std::fputs(
      fmt::format("{}: logits of {} in {}, opset {}, {:.1f} MB\n", flags.onnx.string(), fmt::join(written.inputs, ", "),
                  to_string(classifier.precision()), written.opset, static_cast<double>(written.bytes) / 1e6)
          .c_str(),
      stderr);
  return 0;
}

}  // namespace

Run add_export(CLI::App& app) {
  auto flags = std::make_shared<ExportFlags>();
  flags->model.precision = "fp32";
  flags->model.device = "cpu";
  app.add_option("--model", flags->model.model, kModelHelp)->required()->type_name("MODEL");
  app.add_option("--onnx", flags->onnx, "file to write, named .onnx")->required()->type_name("FILE");
  auto* precision = app.add_option("--precision", flags->model.precision, "number format of weights and computation");
  notes_of(precision->capture_default_str()).choices = {"fp32", "fp16"};
  app.add_flag("--json", flags->json, "print a JSON object about the file");
  app.footer(
      "Examples:\n"
      "  mezzo export --model out --onnx out/model.onnx\n"
      "  mezzo export --model out --onnx out/model_fp16.onnx --precision fp16");
  return [flags] {
    if (flags->model.precision != "fp32" && flags->model.precision != "fp16") {
      throw UsageError(fmt::format("--precision is '{}', expected fp32 or fp16", flags->model.precision));
    }
    if (flags->onnx.extension() != ".onnx") {
      throw UsageError(fmt::format("--onnx is '{}', expected a file named .onnx", flags->onnx.string()));
    }
    flags->model.check();
    return run_export(*flags);
  };
}

}  // namespace mezzo::app
