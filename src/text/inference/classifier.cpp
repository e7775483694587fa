#include "mezzo/text/inference/classifier.h"

#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "mezzo/text/models/pretrained.h"
#include "text/inference/recorded_forward.h"
#include "text/io/read_error.h"

namespace mezzo::text {
namespace {

std::unique_ptr<ModelConfig> read_config(const std::filesystem::path& folder) {
  refuse_adapter(folder);
  auto config = ModelConfig::from_file(folder / "config.json");
  config->check_labels(folder / "config.json");
  return config;
}

std::shared_ptr<ModelForTask> load_model(const std::filesystem::path& folder,
                                         const ModelConfig& config,
                                         const Task& task,
                                         bool is_mapped,
                                         std::vector<std::string>& unused) {
  auto model = make_model(config, task.head());
  auto loaded = is_mapped ? map_pretrained(*model, folder) : load_pretrained(*model, folder, /*seed=*/0);
  if (!loaded.initialised.empty()) {
    const std::string& name = config.first_architecture;
    TORCH_CHECK_VALUE(
        name.empty() || name.ends_with("ForSequenceClassification") || name.ends_with("ForTokenClassification"),
        (folder / "config.json").string(), ": the model is a ", name,
        ", not a trained classifier of texts or words; train one from it with mezzo train");
    TORCH_CHECK_VALUE(false, folder.string(), ": has no ", loaded.initialised.front(),
                      ", so it is not a trained classifier; train one from it with mezzo train");
  }
  unused = std::move(loaded.unused);
  return model;
}

/// As many tokens as the model was trained with, or else has positions for.
int64_t default_max_length(const Tokenizer& tokenizer, const ModelConfig& config) {
  const int64_t trained_with = tokenizer.model_max_length();
  return trained_with > 0 ? std::min(trained_with, config.max_tokens()) : config.max_tokens();
}

}  // namespace

void check_classifier_options(const std::string& precision,
                              const std::string& device,
                              std::optional<int64_t> max_length) {
  check_precision(precision, /*may_be_int8=*/true);
  check_device(device);
  TORCH_CHECK_VALUE(precision != "int8" || device == "auto" || device == "cpu",
                    "--precision int8 is for CPUs, and --device is ", device,
                    "; pass --device cpu or another precision");
  TORCH_CHECK_VALUE(max_length.value_or(2) >= 2, "--max-length is ", *max_length, ", expected at least 2");
}

Classifier::Classifier(const std::filesystem::path& folder, const ClassifierOptions& options)
    : is_int8_(options.precision == "int8"),
      precision_(parse_precision(is_int8_ ? "auto" : options.precision, options.device)),
      config_(read_config(folder)),
      tokenizer_(Tokenizer::from_pretrained(folder)),
      task_(make_task(*config_)),
      model_(load_model(folder, *config_, *task_, options.is_mapped, unused_)),
      max_length_(options.max_length.value_or(default_max_length(*tokenizer_, *config_))) {
  TORCH_CHECK_VALUE(max_length_ <= config_->max_tokens(), "--max-length is ", max_length_,
                    ", the model has positions for ", config_->max_tokens());
  TORCH_CHECK_VALUE(tokenizer_->vocab_size() <= config_->vocab_size, folder.string(), ": the vocabulary has ",
                    tokenizer_->vocab_size(), " tokens, config.json allows ", config_->vocab_size,
                    "; the last token is ", tokenizer_->token(static_cast<int32_t>(tokenizer_->vocab_size() - 1)),
                    ". Does the vocabulary belong to another model?");
  model_->to(options.device);
  if (is_int8_) {
    model_->quantize();
  } else if (options.packs_weights) {
    model_->pack_weights(autocast_dtype(precision_).value_or(at::kFloat));
  }
  if (RecordedForward::is_available(*model_)) recorded_ = std::make_unique<RecordedForward>(*model_, precision_);
}

TokenizedTexts Classifier::tokenize(const TextSpans& rows, int64_t before) const {
  const bool has_windows = !config_->window_pooling.empty();
  TORCH_CHECK_VALUE(!has_windows || (rows.text_pairs.empty() && rows.words.empty()),
                    "by window_pooling of its config.json the model reads single texts in windows, and these are ",
                    rows.words.empty() ? "pairs" : "words");
  auto tokenized = has_windows          ? tokenize_windows(*tokenizer_, rows.texts, max_length_, config_->window_stride)
                   : rows.words.empty() ? text::tokenize(*tokenizer_, rows.texts, rows.text_pairs, max_length_)
                                        : text::tokenize(*tokenizer_, rows.words, max_length_);
  check_has_tokens(tokenized, [&](int64_t row) { return fmt::format("text {}", before + row + 1); });
  return tokenized;
}

Classifier::~Classifier() = default;

at::Tensor Classifier::outputs(const TokenizedTexts& texts,
                               const InferenceShare& share,
                               const InferenceProgress& progress) {
  return predict_outputs(*model_, texts, precision_, progress, share, recorded_.get());
}

void Classifier::record_single_texts() {
  if (!recorded_) return;
  for (const int64_t tokens : recorded_->short_lengths(max_length_)) {
    TokenizedTexts text;
    text.ids.push_back(std::vector(static_cast<size_t>(tokens), static_cast<int32_t>(config_->pad_token_id)));
    for (int64_t pass = 0; pass < recorded_->passes_to_record(); ++pass) outputs(text);
  }
}

void Classifier::check_finite(const at::Tensor& outputs, int64_t before) const {
  const auto is_finite = at::isfinite(outputs).flatten(1).all(1);
  if (is_finite.all().item<bool>()) {
    return;
  }
  const std::string damaged = first_not_finite(*model_);
  TORCH_CHECK(damaged.empty(), "the model's ", damaged,
              " holds inf or NaN; its file is damaged, or its training diverged");
  TORCH_CHECK(false, "the model gives inf or NaN for text ",
              before + is_finite.to(at::kInt).argmin().item<int64_t>() + 1, " in ", precision_name(),
              !is_int8_ && precision_ == Precision::kFloat32 ? "; its training diverged" : "; try --precision fp32");
}

}  // namespace mezzo::text
