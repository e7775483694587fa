#include "text/train/run_setup.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <system_error>
#include <tuple>

#include "kernels/cpu/simd/instruction_set.h"
#include "mezzo/text/io/progress_bar.h"
#include "mezzo/text/models/pretrained.h"
#include "mezzo/text/train/settings.h"
#include "text/data/data_check.h"
#include "text/io/printable.h"
#include "text/io/read_error.h"
#include "text/io/words.h"
#include "text/machine/machine_memory.h"
#include "text/models/lora.h"

namespace mezzo::text {
namespace {

struct Datasets {
  std::shared_ptr<const Task> task;
  Dataset train, dev, test;
};

std::unique_ptr<ModelConfig> read_config(const TrainConfig& config) {
  if (!config.model.empty()) refuse_adapter(config.model);  // before it lacks a config.json
  auto model = ModelConfig::from_file(config.model.empty() ? config.model_config : config.model / "config.json");
  if (config.dropout) {
    model->set_dropout(*config.dropout);
  }
  TORCH_CHECK_VALUE(config.max_length.value_or(2) <= model->max_tokens(), "--max-length is ",
                    config.max_length.value_or(2), ", the model has positions for ", model->max_tokens());
  return model;
}

bool keeps_head(const TrainConfig& config, const ModelConfig& model) {
  return !config.model.empty() && !config.new_head && has_head(model, config.model);
}

/// A trained head keeps its task and its labels, unless a new one is asked for; everything else takes the labels of the
/// training data.
TaskOptions choose_task(const TrainConfig& config, const ModelConfig& model) {
  TaskOptions options{.problem_type = config.task,
                      .label_names = split_names(config.labels, "--labels"),
                      .on_unknown_label = config.labels.empty()
                                              ? "No training text has it. --labels A,B,C names labels without one."
                                              : "Add it to --labels, or correct the row.",
                      .metric = config.metric,
                      .calibrate = config.calibrate};
  const auto columns = config.columns.label_columns();
  if (keeps_head(config, model)) {
    model.check_labels(config.model / "config.json");
    TORCH_CHECK_VALUE(config.task.empty() || config.task == model.problem_type, "--task is ", config.task,
                      ", and the head of --model ", config.model.string(), " is trained for ", model.problem_type,
                      "; leave --task out, or pass --new-head");
    options.problem_type = model.problem_type;
    if (label_kind(model.problem_type) != LabelKind::kNumber) {  // a number's name in id2label says nothing
      TORCH_CHECK_VALUE(options.label_names.empty() || options.label_names == model.label_names, "--labels is ",
                        config.labels, ", and the head of --model ", config.model.string(), " has the labels ",
                        fmt::format("{}", fmt::join(model.label_names, ",")),
                        "; leave --labels out, or pass --new-head");
      options.label_names = model.label_names;
    }
    options.on_unknown_label = "They come from the model's trained head; --new-head trains a head for other labels.";
  } else if (columns.size() > 1) {
    if (config.task.empty()) options.problem_type = "multi_label_classification";
    if (config.labels.empty()) options.label_names = columns;
  }
  return options;
}

/// Notes on oddities of one file.
void look_at(const LabeledRows& rows, const Task& task, std::vector<std::string>& notes) {
  notes.insert(notes.end(), rows.notes.begin(), rows.notes.end());
  for (const std::string& line : task.odd_rows(rows)) {
    notes.push_back("warning: " + line);
  }
}

void split_off_dev(const TrainConfig& config, Datasets& data) {
  const bool has_classes = label_kind(data.task->problem_type()) == LabelKind::kClass;
  if (config.folds > 0) {
    TORCH_CHECK_VALUE(config.folds <= data.train.size(), data.train.places.file, ": has ", data.train.size(),
                      data.train.size() == 1 ? " text" : " texts", ", too few for --folds ", config.folds);
    std::tie(data.train, data.dev) = split_fold(data.train, config.folds, config.fold - 1, has_classes, config.seed);
    return;
  }
  const auto texts = static_cast<double>(data.train.size());
  const int64_t dev = std::llround(texts * config.dev_ratio);
  TORCH_CHECK_VALUE(dev > 0 && dev < data.train.size(), data.train.places.file, ": has ", data.train.size(),
                    data.train.size() == 1 ? " text" : " texts", ", too few for --dev-ratio ", config.dev_ratio,
                    "; pass --dev FILE, or --dev-ratio 0 to train without dev texts");
  TORCH_CHECK_VALUE(!config.stratify || has_classes, "--stratify needs classes, and ", data.task->problem_type(),
                    " has none; leave it out");
  const auto split = config.stratify ? split_by_class : split_dataset;
  std::tie(data.train, data.dev) = split(data.train, config.dev_ratio, config.seed);
}

/// Notes for texts outside training that are inside, too. Training on the dev file is not refused:
/// to see a model learn a few texts by heart is a test of everything before it.
void look_for_shared_texts(const TrainConfig& config, const Datasets& data, std::vector<std::string>& notes) {
  const auto look = [&](const std::vector<std::filesystem::path>& paths, const Dataset& texts,
                        const std::string& role) {
    for (const auto& path : paths) {
      std::error_code unknown;
      const auto is_same = [&](const auto& file) { return std::filesystem::equivalent(path, file, unknown); };
      if (std::ranges::any_of(config.train, is_same)) {
        notes.push_back(fmt::format("warning: the {0} texts are {1}, {2}: {0} scores are optimistic", role,
                                    config.train.size() == 1 ? "the training file" : "of a training file",
                                    path.string()));
        return;
      }
    }
    for (const std::string& line : shared_texts(data.train, texts, role)) {
      notes.push_back("warning: " + line);
    }
  };
  look(config.dev, data.dev, "dev");
  look(config.test, data.test, "test");
}

/// What a model learns of pairs says nothing about single texts, and the other way round.
void check_same_kind(const LabeledRows& rows, bool pairs, const std::string& train) {
  TORCH_CHECK_VALUE(rows.text_pairs.empty() != pairs, rows.places.file,
                    pairs ? ": has single texts" : ": has pairs of texts", ", but the training file, ", train, ", has ",
                    pairs ? "pairs" : "single texts", "; give both files a text_pair, or neither");
}

/// Shows how much of the data is read, if that takes more than some seconds.
class LoadingProgress {
 public:
  explicit LoadingProgress(bool shows) : shows_(shows) {}

  /// @param total  0: not known
  void show(const std::string& label, int64_t done, int64_t total, const std::string& unit) {
    constexpr auto kPatience = std::chrono::seconds(3);
    if (!shows_) return;
    if (label != label_) bar_.emplace(ProgressBar::Options{.label = label_ = label, .total = total, .unit = unit});
    if (std::chrono::steady_clock::now() - begin_ >= kPatience) bar_->update(done);
  }

 private:
  const bool shows_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::string label_;
  std::optional<ProgressBar> bar_;
};

/// Where texts and token ids are kept, and who is told how many are read.
struct Loading {
  std::shared_ptr<RowMemory> memory = nullptr;
  std::shared_ptr<LoadingProgress> progress = std::make_shared<LoadingProgress>(false);
};

/// The folder is TMPDIR, or where --output is or will be.
std::shared_ptr<RowMemory> row_memory(const TrainConfig& config, const Ranks& ranks) {
  constexpr double kGigabyte = 1e9, kShare = 0.25;
  const auto ranks_here =
      static_cast<double>(ranks.group() == nullptr ? 1 : ranks.group()->environment().local_world_size);
  const double bytes = config.data_memory ? *config.data_memory * kGigabyte
                                          : kShare * static_cast<double>(machine_memory(at::kCPU).total) / ranks_here;
  const char* const chosen = std::getenv("TMPDIR");
  const std::filesystem::path output = config.output.empty() ? "." : config.output;  // --dry-run needs none
  std::filesystem::path folder = chosen != nullptr ? chosen : std::filesystem::absolute(output).parent_path();
  std::error_code none;
  while (chosen == nullptr && !std::filesystem::is_directory(folder, none) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  return std::make_shared<RowMemory>(static_cast<int64_t>(bytes), folder);
}

Datasets load_datasets(const TrainConfig& config,
                       const ModelConfig& model,
                       c10::Device device,
                       const Loading& loading,
                       std::vector<std::string>& notes) {
  const TaskOptions task = choose_task(config, model);
  const auto options = LoadRowsOptions()
                           .label_kind(label_kind(task.problem_type))
                           .columns(config.columns)
                           .on_other_task(keeps_head(config, model) ? "--new-head --task" : "--task")
                           .memory(loading.memory)
                           .on_rows([&](const std::string& file, int64_t rows) {
                             loading.progress->show("reading " + file, rows, 0, "rows");
                           });
  LabeledRows rows = load_rows(config.train, LoadRowsOptions(options).limit(config.limit));
  check_has_text(rows);
  Datasets data{make_task(rows, task), {}, {}, {}};
  const auto take = [&, pairs = !rows.text_pairs.empty(), train = rows.places.file](LabeledRows rows_of_file) {
    check_same_kind(rows_of_file, pairs, train);
    look_at(rows_of_file, *data.task, notes);
    auto targets = data.task->targets(rows_of_file);
    return to_dataset(std::move(rows_of_file), std::move(targets));
  };
  const std::string identifiers =
      task.label_names.empty() ? labels_like_identifiers(rows, config.columns.as_read().label) : "";
  if (!identifiers.empty()) notes.push_back("warning: " + identifiers);
  data.train = take(std::move(rows));
  if (!config.dev.empty()) {
    data.dev = take(load_rows(config.dev, options));
  } else if (config.has_dev()) {
    split_off_dev(config, data);
  }
  if (!config.test.empty()) {
    data.test = take(load_rows(config.test, options));
  }
  if (data.dev.targets.defined()) {
    const std::string why = data.task->why_undefined(data.dev.targets);
    const bool is_fold = config.folds > 0;
    TORCH_CHECK_VALUE(why.empty(), "--metric ", data.task->metrics().front().name, " is not defined on the dev texts",
                      is_fold ? fmt::format(" of fold {}", config.fold) : "", ": ", why, ". Pass another --metric, or ",
                      is_fold ? "fewer --folds" : "other dev texts");
  }
  const bool is_split = config.dev.empty() && config.has_dev();
  const auto untrained = data.task->untrained(data.train.targets, is_split ? " once dev is set aside" : "");
  for (const std::string& line : untrained) {
    if (identifiers.empty()) notes.push_back("warning: " + line);
  }
  look_for_shared_texts(config, data, notes);
  data.task = data.task->with_loss(config.loss(), data.train.targets, device);
  return data;
}

void describe_trained(const ModelForTask& model, std::vector<std::string>& notes) {
  int64_t trained = 0, parameters = 0;
  for (const auto& parameter : model.parameters()) {
    parameters += parameter.numel();
    trained += parameter.requires_grad() ? parameter.numel() : 0;
  }
  notes.push_back(fmt::format("{} of {} parameters are trained", trained, parameters));
}

void fill_model(const TrainConfig& config, ModelForTask& model, c10::Device device, std::vector<std::string>& notes) {
  if (config.model.empty()) {
    model.init_weights(config.seed);
    notes.push_back("fresh weights");
    return;
  }
  // Weights that are not trained need no memory besides the file's if the device reads files.
  const bool is_mapped = config.lora > 0 && device.is_cpu();
  const LoadedWeights loaded = is_mapped ? map_pretrained(model, config.model, config.seed, config.new_head)
                                         : load_pretrained(model, config.model, config.seed, config.new_head);
  if (const std::string damaged = first_not_finite(model, loaded); !damaged.empty()) {
    notes.push_back(
        fmt::format("warning: {}: {} holds inf or NaN; fetch the file again", config.model.string(), damaged));
  }
  if (!loaded.initialised.empty()) {
    notes.push_back(fmt::format("{} from {}; initialised at random: {}", config.new_head ? "not taken" : "missing",
                                config.model.string(), fmt::join(loaded.initialised, ", ")));
  }
  if (!loaded.unused.empty()) {
    notes.push_back(fmt::format("in {}, but not used: {}", config.model.string(), fmt::join(loaded.unused, ", ")));
  }
  if (config.lora > 0) {
    const LoraOptions options{.rank = config.lora,
                              .alpha = config.lora_alpha,
                              .dropout = config.lora_dropout,
                              .target_modules = config.lora_target_modules};
    add_lora(model, options, config.seed, loaded.initialised, loaded.release);
    describe_trained(model, notes);
  }
}

/// Frozen weights need no gradient, and layers before the first trained weight keep nothing for backward.
void freeze(const TrainConfig& config, ModelForTask& model, std::vector<std::string>& notes) {
  if (config.freeze.empty()) return;
  const bool is_encoder = config.freeze == "encoder";
  const int64_t layers = is_encoder || config.freeze == "embeddings" ? 0 : std::stoll(config.freeze);
  const int64_t all = model.config().num_hidden_layers;
  TORCH_CHECK_VALUE(layers <= all, "--freeze is ", layers, ", the model has ", all, all == 1 ? " layer" : " layers");
  for (auto& item : model.named_parameters()) {
    const bool is_frozen =
        is_encoder ? !model.name_in_encoder(item.key()).empty() : model.layer_of(item.key()) <= layers;
    item.value().requires_grad_(!is_frozen);
  }
  describe_trained(model, notes);
}

TokenizedTexts tokenize_dataset(const TrainConfig& config,
                                const Tokenizer& tokenizer,
                                const Dataset& dataset,
                                const Loading& loading) {
  TORCH_CHECK_VALUE(config.window == "none" || (dataset.words.empty() && dataset.text_pairs.empty()), "--window ",
                    config.window, " is for single texts with one label or several each; leave it out for ",
                    dataset.words.empty() ? "pairs" : "words");
  const TokenizeOptions options{.count_lost = true, .memory = loading.memory, .on_texts = [&](int64_t texts) {
                                  loading.progress->show("tokenizing " + dataset.places.file, texts, dataset.size(),
                                                         "texts");
                                }};
  TokenizedTexts texts =
      config.window != "none" ? tokenize_windows(tokenizer, dataset.texts, *config.max_length, config.stride, options)
      : dataset.words.empty() ? tokenize(tokenizer, dataset.texts, dataset.text_pairs, *config.max_length, options)
                              : tokenize(tokenizer, dataset.words, *config.max_length, options);
  check_has_tokens(texts, [&](int64_t row) { return dataset.places.at(row); });
  set_targets(texts, dataset.targets);
  if (!texts.ids.empty()) check_reads_words(texts, dataset.places.file, *config.max_length);
  return texts;
}

/// Tokens of each text, special ones included; `most` + 1 for more than `most`.
std::vector<int64_t> count_tokens(const Tokenizer& tokenizer,
                                  const Dataset& texts,
                                  int64_t most,
                                  const Loading& loading) {
  constexpr int64_t kTextsAtATime = 16384, kTextsPerTask = 64;
  const auto order = texts.texts.storage_order();  // empty for words
  std::vector<int64_t> counts(static_cast<size_t>(texts.size()));
  for (int64_t first = 0; first < texts.size(); first += kTextsAtATime) {
    const int64_t end = std::min(first + kTextsAtATime, texts.size());
    at::parallel_for(first, end, kTextsPerTask, [&](int64_t begin, int64_t end_of_task) {
      for (int64_t place = begin; place < end_of_task; ++place) {
        const int64_t i = order.empty() ? place : order[place];
        const Encoding encoding = !texts.words.empty() ? tokenizer.encode_words(texts.words[i], most)
                                  : !texts.text_pairs.empty()
                                      ? tokenizer.encode(texts.texts[i], texts.text_pairs[i], most)
                                      : tokenizer.encode(texts.texts[i], most);
        counts[i] = encoding.truncated ? most + 1 : std::ssize(encoding.input_ids);
      }
    });
    loading.progress->show("counting the tokens of " + texts.places.file, end, texts.size(), "texts");
  }
  return counts;
}

/// The smallest multiple of 32 that truncates at most 1 % of the texts, at most `most`.
int64_t choose_max_length(std::vector<int64_t> counts, int64_t most) {
  constexpr int64_t kMultiple = 32, kTruncatedOf = 100;
  const auto longest_kept = counts.begin() + std::ssize(counts) / kTruncatedOf;
  std::ranges::nth_element(counts, longest_kept, std::greater());
  return std::min(at::round_up(*longest_kept, kMultiple), most);
}

/// 5e-5 for BERT-base. Narrow models take larger steps. Authors recommend about 2e-5 for BERT-large, and up to 3e-4 for
/// the smallest BERTs (Devlin et al. 2019; Turc et al. 2019).
double default_learning_rate(int64_t hidden_size) {
  constexpr double kOfBase = 5e-5, kHiddenOfBase = 768, kMost = 1e-3;
  const double ratio = kHiddenOfBase / static_cast<double>(hidden_size);
  return std::min(kOfBase * ratio * ratio, kMost);
}

/// Gives the settings that depend on others, on the model or on the texts their defaults.
void choose_defaults(
    TrainConfig& config, const ModelConfig& model, const Dataset& train, const Loading& loading, RunSetup& setup) {
  config.learning_rate =
      config.learning_rate.value_or(config.lora > 0 ? 2e-4 : default_learning_rate(model.hidden_size));
  config.warmup_ratio = config.warmup_ratio.value_or(default_warmup_ratio(config.schedule));
  if (config.max_length) return;
  const auto counts = count_tokens(*setup.tokenizer, train, model.max_tokens(), loading);
  config.max_length = choose_max_length(counts, model.max_tokens());
  const auto truncated = std::ranges::count_if(counts, [&](int64_t count) { return count > *config.max_length; });
  setup.notes.push_back(fmt::format(
      "max length {}, chosen by the data: {} of {} training texts are truncated ({:.1f} %)", *config.max_length,
      truncated, counts.size(), 100 * static_cast<double>(truncated) / static_cast<double>(counts.size())));
}

ReadableTexts readable_texts(Dataset& dataset, const Loading& loading) {
  Texts texts(loading.memory);
  for (size_t i = 0; i < dataset.texts.size(); ++i) {
    std::string text(dataset.texts[i]);
    if (!dataset.text_pairs.empty()) text.append(" | ").append(dataset.text_pairs[i]);
    texts.push_back(text);
  }
  return {std::move(texts), std::move(dataset.words), std::move(dataset.places)};
}

/// How many texts are read in windows, for a note; empty where none is.
std::string describe_windows(const RunSetup& setup) {
  int64_t texts = 0, windows = 0;
  for (const TokenizedTexts* part : {&setup.train, &setup.dev, &setup.test}) {
    for (const auto lengths : part->window_lengths) {
      texts += lengths.size() > 1 ? 1 : 0;
      windows += lengths.size() > 1 ? std::ssize(lengths) : 0;
    }
  }
  return texts == 0 ? "" : fmt::format("{} read in windows, {} in all", counted(texts, "text"), windows);
}

}  // namespace

std::vector<std::string> data_warnings(const TrainConfig& config) {
  std::vector<std::string> notes;
  load_datasets(config, *read_config(config), c10::kCPU, {}, notes);
  std::erase_if(notes, [](const std::string& note) { return !note.starts_with("warning: "); });
  return notes;
}

RunSetup set_up_run(TrainConfig& config, const Ranks& ranks) {
  kernels::cpu::instruction_set();  // throws for an unknown name here, before anything is written
  const c10::Device device = parse_device(config.device);
  const Precision precision = parse_precision(config.precision, device);
  TORCH_CHECK_VALUE(!config.master_weights || precision != Precision::kFloat32,
                    "--master-weights needs --precision bf16 or fp16; this run is in fp32");
  const auto model_config = read_config(config);
  RunSetup setup{device,
                 precision,
                 config.model.empty() ? Tokenizer::from_vocab(config.vocab) : Tokenizer::from_pretrained(config.model),
                 nullptr,
                 {},
                 {},
                 {},
                 nullptr,
                 {}};
  TORCH_CHECK_VALUE(setup.tokenizer->vocab_size() <= model_config->vocab_size, "the vocabulary has ",
                    setup.tokenizer->vocab_size(), " tokens, the model's config.json allows ", model_config->vocab_size,
                    "; the last token is ",
                    printable(setup.tokenizer->token(static_cast<int32_t>(setup.tokenizer->vocab_size() - 1))),
                    ". Does the vocabulary belong to another model?");

  const Loading loading{row_memory(config, ranks), std::make_shared<LoadingProgress>(ranks.is_main() && !config.quiet)};
  Datasets data = load_datasets(config, *model_config, device, loading, setup.notes);
  setup.task = data.task;
  visit_settings(config, [&](const Setting& setting, const auto& field) {
    if constexpr (requires { field.has_value(); }) {
      if (!field) setup.automatic.emplace(setting.name());
    }
  });
  choose_defaults(config, *model_config, data.train, loading, setup);
  setup.train = tokenize_dataset(config, *setup.tokenizer, data.train, loading);
  setup.dev = tokenize_dataset(config, *setup.tokenizer, data.dev, loading);
  setup.test = tokenize_dataset(config, *setup.tokenizer, data.test, loading);
  setup.dev_readable = readable_texts(data.dev, loading);
  setup.test_readable = readable_texts(data.test, loading);
  setup.reads_pairs = !data.train.text_pairs.empty();
  data = {};
  if (loading.memory->bytes_in_files() > 0) {
    setup.notes.push_back(fmt::format("of texts and token ids, {:.2f} GB are in memory and {:.2f} GB in a file in {}",
                                      gigabytes(loading.memory->bytes_in_memory()),
                                      gigabytes(loading.memory->bytes_in_files()), loading.memory->folder().string()));
  }
  int64_t truncated = 0, lost = 0, read = 0;
  for (const TokenizedTexts* part : {&setup.train, &setup.dev, &setup.test}) {
    truncated += part->truncated;
    lost += part->lost_tokens;
    read += part->count_tokens();
  }
  setup.notes.push_back(fmt::format("{} training, {} dev and {} test texts in {}", setup.train.ids.size(),
                                    setup.dev.ids.size(), setup.test.ids.size(), setup.task->summary()));
  if (truncated > 0) {
    setup.notes.push_back(
        fmt::format("{} {}", counted(truncated, "text"), describe_cut(*config.max_length, read, lost)));
  }

  if (const std::string windows = describe_windows(setup); !windows.empty()) {
    setup.notes.push_back(windows);
  }

  if (config.window == "none" && !model_config->window_pooling.empty()) {
    setup.notes.push_back(
        fmt::format("the model was trained to read long texts in windows; now long texts are truncated. --window {} "
                    "reads them in windows",
                    model_config->window_pooling));
  }
  setup.task->describe(*model_config);
  model_config->window_pooling = config.window == "none" ? "" : config.window;
  model_config->window_stride = config.stride;
  model_config->reads_pairs = setup.reads_pairs;
  setup.model = make_model(*model_config, setup.task->head());
  fill_model(config, *setup.model, device, setup.notes);
  freeze(config, *setup.model, setup.notes);
  setup.model->to(device);
  return setup;
}

}  // namespace mezzo::text
