#include "text/run_setup.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>

#include "mezzo/text/pretrained.h"

namespace mezzo::text {
namespace {

struct Datasets {
  LabelMap labels;
  Dataset train, dev, test;
};

BertConfig read_config(const TrainConfig& config) {
  auto model = BertConfig::from_file(config.model.empty() ? config.model_config : config.model / "config.json");
  if (config.dropout) {
    model.set_dropout(*config.dropout);
  }
  TORCH_CHECK_VALUE(config.max_length <= model.max_position_embeddings, "--max-length is ", config.max_length,
                    ", the model has positions for ", model.max_position_embeddings);
  return model;
}

/// A trained classifier keeps its labels; everything else takes those of the training data.
LabelMap choose_labels(const TrainConfig& config, const BertConfig& model, const LabeledRows& rows) {
  const bool is_classifier = !config.model.empty() && has_classifier(config.model);
  return is_classifier ? LabelMap::from_names(model.label_names) : LabelMap::from_rows(rows);
}

Datasets load_datasets(const TrainConfig& config, const BertConfig& model, std::vector<std::string>& notes) {
  LabeledRows rows = load_rows(config.train, LoadRowsOptions().limit(config.limit));
  Datasets data{choose_labels(config, model, rows), {}, {}, {}};
  TORCH_CHECK_VALUE(data.labels.size() >= 2, config.train.string(), ": has a single label, '", data.labels.name(0),
                    "'; a classifier needs at least two");
  if (rows.rows_with_invalid_utf8 > 0) {
    notes.push_back(fmt::format("{}: bytes that are no UTF-8 replaced by U+FFFD in {} rows", rows.file,
                                rows.rows_with_invalid_utf8));
  }
  data.train = to_dataset(std::move(rows), data.labels);
  if (!config.dev.empty()) {
    data.dev = to_dataset(load_rows(config.dev), data.labels);
  } else if (config.dev_ratio > 0) {
    std::tie(data.train, data.dev) = split_dataset(std::move(data.train), config.dev_ratio, config.seed);
  }
  if (!config.test.empty()) {
    data.test = to_dataset(load_rows(config.test), data.labels);
  }
  return data;
}

void fill_model(const TrainConfig& config, BertForSequenceClassification& model, std::vector<std::string>& notes) {
  if (config.model.empty()) {
    model.init_weights(config.seed);
    notes.push_back("fresh weights");
    return;
  }
  const LoadedWeights loaded = load_pretrained(model, config.model, config.seed);
  if (!loaded.initialised.empty()) {
    notes.push_back(
        fmt::format("not in {}, so initialised: {}", config.model.string(), fmt::join(loaded.initialised, ", ")));
  }
  if (!loaded.unused.empty()) {
    notes.push_back(fmt::format("in {}, but not used: {}", config.model.string(), fmt::join(loaded.unused, ", ")));
  }
}

}  // namespace

TokenizedTexts tokenize(const BertTokenizer& tokenizer,
                        const Dataset& dataset,
                        int64_t max_length,
                        int64_t& truncated) {
  constexpr int64_t kTextsPerTask = 64;
  TokenizedTexts texts;
  texts.labels = dataset.labels;
  texts.ids.resize(dataset.texts.size());
  std::atomic<int64_t> cut = 0;
  at::parallel_for(0, static_cast<int64_t>(texts.ids.size()), kTextsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Encoding encoding = tokenizer.encode(dataset.texts[i], max_length);
      texts.ids[i] = std::move(encoding.input_ids);
      cut += encoding.truncated;
    }
  });
  truncated += cut;
  return texts;
}

RunSetup set_up_run(const TrainConfig& config) {
  const c10::Device device = parse_device(config.device);
  const Precision precision = parse_precision(config.precision, device);
  TORCH_CHECK_VALUE(!config.master_weights || precision != Precision::kFloat32,
                    "--master-weights needs --precision bf16 or fp16; this run is in fp32");
  BertConfig model_config = read_config(config);
  RunSetup setup{
      device,
      precision,
      config.model.empty() ? BertTokenizer::from_vocab(config.vocab) : BertTokenizer::from_pretrained(config.model),
      {},
      {},
      {},
      nullptr,
      {}};
  TORCH_CHECK_VALUE(setup.tokenizer.vocab_size() <= model_config.vocab_size, "the vocabulary has ",
                    setup.tokenizer.vocab_size(), " tokens, the model's config.json allows ", model_config.vocab_size);

  const Datasets data = load_datasets(config, model_config, setup.notes);
  int64_t truncated = 0;
  setup.train = tokenize(setup.tokenizer, data.train, config.max_length, truncated);
  setup.dev = tokenize(setup.tokenizer, data.dev, config.max_length, truncated);
  setup.test = tokenize(setup.tokenizer, data.test, config.max_length, truncated);
  setup.notes.push_back(fmt::format("{} training, {} dev and {} test texts in {} classes", setup.train.ids.size(),
                                    setup.dev.ids.size(), setup.test.ids.size(), data.labels.size()));
  if (truncated > 0) {
    setup.notes.push_back(fmt::format("{} texts cut to {} tokens", truncated, config.max_length));
  }

  model_config.label_names = data.labels.names();
  setup.model = std::make_shared<BertForSequenceClassification>(model_config);
  fill_model(config, *setup.model, setup.notes);
  setup.model->to(device);
  return setup;
}

}  // namespace mezzo::text
