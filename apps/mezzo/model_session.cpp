#include "model_session.h"

#include <ATen/Parallel.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "commands.h"
#include "mezzo/text/models/pretrained.h"
#include "mezzo/text/setup/train_config.h"
#include "ranks.h"

namespace mezzo::app {
namespace {

std::unique_ptr<text::ModelConfig> read_config(const std::filesystem::path& folder) {
  auto config = text::ModelConfig::from_file(folder / "config.json");
  config->check_labels(folder / "config.json");
  return config;
}

std::shared_ptr<text::ModelForTask> load_model(const std::filesystem::path& folder,
                                               const text::ModelConfig& config,
                                               const text::Task& task,
                                               const distributed::ProcessGroup* group) {
  auto model = text::make_model(config, task.head());
  const auto loaded = text::map_pretrained(*model, folder);
  if (!loaded.initialised.empty()) {
    const std::string& name = config.first_architecture;
    TORCH_CHECK_VALUE(
        name.empty() || name.ends_with("ForSequenceClassification") || name.ends_with("ForTokenClassification"),
        (folder / "config.json").string(), ": it is a ", name,
        ", so no trained classifier of texts or words; mezzo train makes one of it");
    TORCH_CHECK_VALUE(false, (folder / "model.safetensors").string(), ": has no ", loaded.initialised.front(),
                      ", so it is no trained classifier; mezzo train makes one of it");
  }
  if (!loaded.unused.empty() && is_main(group)) {
    std::fputs(fmt::format("in {}, but not used: {}\n", folder.string(), fmt::join(loaded.unused, ", ")).c_str(),
               stderr);
  }
  return model;
}

/// As many tokens as the model was trained with, or else has positions for.
int64_t default_max_length(const text::Tokenizer& tokenizer, const text::ModelConfig& config) {
  const int64_t trained_with = tokenizer.model_max_length();
  return trained_with > 0 ? std::min(trained_with, config.max_tokens()) : config.max_tokens();
}

}  // namespace

void ModelFlags::add_to(CLI::App& app, bool chooses_precision, bool names_model) {
  if (names_model) {
    app.add_option("--model", model, "folder of a trained classifier")->required();
  }
  if (chooses_precision) {
    app.add_option("--precision", precision, "fp32, bf16, fp16, auto, or int8 on a CPU")->capture_default_str();
    app.add_option("--device", device, "cpu, cuda, cuda:N or auto")->capture_default_str();
  }
  app.add_option("--max-length", max_length,
                 "tokens a text is cut to; without it, as many as the model was trained with");
  app.add_option("--threads", threads, "processor threads; 0: LibTorch's choice")->capture_default_str();
}

void ModelFlags::check() {
  as_usage([&] {
    text::check_precision(precision, /*may_be_int8=*/true);
    text::check_device(device);
    TORCH_CHECK_VALUE(!is_int8() || device == "auto" || device == "cpu",
                      "--precision int8 is for CPUs, and --device is ", device,
                      "; pass --device cpu or another precision");
    if (is_int8()) {
      device = "cpu";
    }
    TORCH_CHECK_VALUE(max_length.value_or(2) >= 2, "--max-length is ", *max_length, ", expected at least 2");
    TORCH_CHECK_VALUE(threads >= 0, "--threads is ", threads, ", expected at least 0");
    TORCH_CHECK_VALUE(threads <= text::kMostThreads, "--threads is ", threads, ", expected at most ",
                      text::kMostThreads);
  });
}

ModelSession::ModelSession(const ModelFlags& flags, distributed::ProcessGroup* group)
    : group_(group),
      device_(text::parse_device(flags.device)),
      precision_(text::parse_precision(flags.is_int8() ? "auto" : flags.precision, device_)),
      is_int8_(flags.is_int8()),
      tokenizer_(text::Tokenizer::from_pretrained(flags.model)),
      config_(read_config(flags.model)),
      task_(text::make_task(*config_)),
      model_(load_model(flags.model, *config_, *task_, group)),
      max_length_(flags.max_length.value_or(default_max_length(*tokenizer_, *config_))) {
  if (flags.threads > 0) {
    at::set_num_threads(static_cast<int>(flags.threads));
  }
  TORCH_CHECK_VALUE(max_length_ <= config_->max_tokens(), "--max-length is ", max_length_,
                    ", the model has positions for ", config_->max_tokens());
  TORCH_CHECK_VALUE(tokenizer_->vocab_size() <= config_->vocab_size, flags.model.string(), ": the vocabulary has ",
                    tokenizer_->vocab_size(), " tokens, config.json allows ", config_->vocab_size, "; the last is ",
                    tokenizer_->token(static_cast<int32_t>(tokenizer_->vocab_size() - 1)), ". Is it another model's?");
  model_->to(device_);
  if (is_int8_) {
    model_->quantize();
  }
}

ModelSession::Result ModelSession::run(const TextSpans& rows) {
  const bool has_windows = !config_->window_pooling.empty();
  TORCH_CHECK_VALUE(!has_windows || (rows.text_pairs.empty() && rows.words.empty()),
                    "by window_pooling of its config.json the model reads single texts in windows, and these are ",
                    rows.words.empty() ? "pairs" : "words");
  auto tokenized = has_windows ? text::tokenize_windows(*tokenizer_, rows.texts, max_length_, config_->window_stride)
                   : rows.words.empty() ? text::tokenize(*tokenizer_, rows.texts, rows.text_pairs, max_length_)
                                        : text::tokenize(*tokenizer_, rows.words, max_length_);
  text::check_has_tokens(tokenized, [&](int64_t row) { return fmt::format("text {}", num_texts_ + row + 1); });
  num_cut_ += tokenized.truncated;
  num_texts_ += static_cast<int64_t>(rows.texts.size());
  text::InferenceShare share;
  if (group_ != nullptr) {
    share = {.rank = group_->rank(), .of = group_->size()};
  }
  auto outputs = text::predict_outputs(*model_, tokenized, precision_, {}, share);
  if (group_ != nullptr) {
    group_->all_reduce_sum(outputs);
  }
  check_finite(outputs);
  return {std::move(outputs), std::move(tokenized)};
}

void ModelSession::check_finite(const at::Tensor& outputs) const {
  const auto is_finite = at::isfinite(outputs).flatten(1).all(1);
  if (is_finite.all().item<bool>()) {
    return;
  }
  const std::string damaged = text::first_not_finite(*model_);
  TORCH_CHECK(damaged.empty(), "the model's ", damaged,
              " holds inf or NaN; its file is damaged, or its training diverged");
  const int64_t before = num_texts_ - outputs.size(0);
  TORCH_CHECK(
      false, "the model gives inf or NaN for text ", before + is_finite.to(at::kInt).argmin().item<int64_t>() + 1,
      " in ", is_int8_ ? "int8" : to_string(precision_),
      !is_int8_ && precision_ == text::Precision::kFloat32 ? "; its training diverged" : "; try --precision fp32");
}

void ModelSession::report_cut_texts() const {
  if (num_cut_ > 0 && (group_ == nullptr || group_->rank() == 0)) {
    std::fputs(fmt::format("{} of {} texts cut to {} tokens\n", num_cut_, num_texts_, max_length_).c_str(), stderr);
  }
}

}  // namespace mezzo::app
