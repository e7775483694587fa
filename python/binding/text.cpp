// torch.classes.mezzo.Tokenizer and Classifier: python/mezzo/text.py is their face.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <csignal>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "mezzo/text/hub/hub.h"
#include "mezzo/text/inference/classifier.h"
#include "mezzo/text/inference/int8_check.h"
#include "mezzo/text/inference/prediction_json.h"
#include "mezzo/text/tokenizers/tokenizer.h"

namespace mezzo::text {
namespace {

volatile std::sig_atomic_t interrupts = 0;
struct sigaction handler_before;

extern "C" void note_interrupt(int signal) {
  interrupts = interrupts + 1;
  handler_before.sa_handler(signal);
}

/// While one lives, SIGINT is noted before Python's handler notes it. If Python has no handler, nothing is noted.
class InterruptNote {
 public:
  InterruptNote() {
    const std::lock_guard lock(mutex_);
    if (count_++ == 0) {
      ::sigaction(SIGINT, nullptr, &handler_before);
      if (handler_before.sa_handler == SIG_DFL || handler_before.sa_handler == SIG_IGN ||
          (handler_before.sa_flags & SA_SIGINFO) != 0) {
        return;
      }
      struct sigaction action{};
      action.sa_handler = note_interrupt;
      action.sa_flags = SA_ONSTACK;  // as Python has it
      ::sigaction(SIGINT, &action, nullptr);
    }
  }
  ~InterruptNote() {
    const std::lock_guard lock(mutex_);
    struct sigaction now{};
    if (--count_ == 0 && ::sigaction(SIGINT, nullptr, &now) == 0 && now.sa_handler == note_interrupt) {
      ::sigaction(SIGINT, &handler_before, nullptr);  // unless another thread has set another handler
    }
  }
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;

  bool was_interrupted() const { return interrupts != before_; }

 private:
  inline static std::mutex mutex_;
  inline static int count_ = 0;
  const std::sig_atomic_t before_ = interrupts;
};

/// As model_folder() in C++. Ctrl-C stops a download.
std::string find_model(const std::string& name, bool only_tokenizer) {
  const InterruptNote note;
  return model_folder(name, {.files = only_tokenizer ? ModelFiles::kTokenizer : ModelFiles::kAll,
                             .stop_requested = [&] { return note.was_interrupted(); }})
      .string();
}

using Strings = std::vector<std::string>;

at::Tensor to_tensor(const std::vector<int32_t>& numbers) {
  auto tensor = at::empty({std::ssize(numbers)}, at::kInt);
  std::ranges::copy(numbers, tensor.mutable_data_ptr<int32_t>());
  return tensor;
}

class BoundTokenizer : public torch::CustomClassHolder {
 public:
  /// @param is_vocab  whether `path` is a bare vocabulary, not a folder.
  BoundTokenizer(const std::string& path, bool is_vocab)
      : tokenizer_(is_vocab ? Tokenizer::from_vocab(path) : Tokenizer::from_pretrained(path)) {}

  /// Of all texts, one after the other: ids and token types; of each text its number of ids, and whether it is
  /// truncated. All int32.
  /// @param pairs  as many as `texts`, or none
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> encode(const Strings& texts,
                                                                    const Strings& pairs,
                                                                    int64_t max_length) const {
    std::vector<Encoding> encodings(texts.size());
    constexpr int64_t kTextsOfThread = 64;
    at::parallel_for(0, std::ssize(texts), kTextsOfThread, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        encodings[i] = pairs.empty() ? tokenizer_->encode(texts[i], max_length)
                                     : tokenizer_->encode(texts[i], pairs[i], max_length);
      }
    });
    std::vector<int32_t> ids, types, lengths, truncated;
    for (const Encoding& encoding : encodings) {
      ids.insert(ids.end(), encoding.input_ids.begin(), encoding.input_ids.end());
      types.insert(types.end(), encoding.token_type_ids.begin(), encoding.token_type_ids.end());
      lengths.push_back(static_cast<int32_t>(encoding.input_ids.size()));
      truncated.push_back(encoding.truncated ? 1 : 0);
    }
    return {to_tensor(ids), to_tensor(types), to_tensor(lengths), to_tensor(truncated)};
  }

  /// Ids, token types and words of the ids.
  std::tuple<at::Tensor, at::Tensor, at::Tensor, bool> encode_words(const Strings& words, int64_t max_length) const {
    const Encoding encoding = tokenizer_->encode_words(words, max_length);
    return {to_tensor(encoding.input_ids), to_tensor(encoding.token_type_ids), to_tensor(encoding.word_ids),
            encoding.truncated};
  }

  /// Of each window its ids.
  std::vector<at::Tensor> encode_windows(const std::string& text, int64_t max_length, int64_t stride) const {
    std::vector<at::Tensor> windows;
    for (const Encoding& window : tokenizer_->encode_windows(text, max_length, stride)) {
      windows.push_back(to_tensor(window.input_ids));
    }
    return windows;
  }

  Strings split_words(const std::string& text) const { return tokenizer_->split_words(text); }
  std::string token(int64_t id) const {
    TORCH_CHECK_VALUE(id >= 0 && id < vocab_size(), "no token has the id ", id, "; ids go from 0 to ",
                      vocab_size() - 1);
    return tokenizer_->token(static_cast<int32_t>(id));
  }
  int64_t pad_id() const { return tokenizer_->pad_id(); }
  int64_t vocab_size() const { return tokenizer_->vocab_size(); }
  int64_t model_max_length() const { return tokenizer_->model_max_length(); }
  void save(const std::string& folder, bool token_types, bool words) const {
    tokenizer_->save(folder, TokenizerSaveOptions().token_types(token_types).words(words));
  }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
};

class BoundClassifier : public torch::CustomClassHolder {
 public:
  BoundClassifier(const std::string& folder,
                  const std::string& precision,
                  const std::string& device,
                  std::optional<int64_t> max_length)
      : classifier_(folder,
                    {.precision = precision,
                     .device = parse_device(precision == "int8" ? "cpu" : device),
                     .max_length = max_length}) {}

  /// float32 on CPU: [texts, labels], or [texts, tokens, labels] of a model that labels words; and how many texts were
  /// truncated. Nothing if Ctrl-C stopped it.
  /// @param pairs  as many as `texts`, or none
  /// @param before  texts of earlier calls, for the numbers of texts in messages
  /// @param is_main  whether this is the thread that runs Python's handlers of signals: Ctrl-C stops no other
  std::optional<std::tuple<at::Tensor, int64_t>> outputs(Strings texts, Strings pairs, int64_t before, bool is_main) {
    const auto [outputs, tokenized] = run(Batch(*this, std::move(texts), std::move(pairs)), before, is_main);
    if (!outputs.defined()) return {};
    return std::tuple(outputs, tokenized.truncated);
  }

  /// Of each text a line of JSON, as `mezzo predict` writes it; and how many texts were truncated. Nothing if Ctrl-C
  /// stopped it.
  std::optional<std::tuple<Strings, int64_t>> predict(Strings texts, Strings pairs, int64_t before, bool is_main) {
    const Batch batch(*this, std::move(texts), std::move(pairs));
    const auto [outputs, tokenized] = run(batch, before, is_main);
    if (!outputs.defined()) return {};
    return std::tuple(
        predictions_as_json(classifier_.task(), batch.rows, outputs, tokenized.word_ids, {}, /*logits=*/false),
        tokenized.truncated);
  }

  Strings labels() const { return classifier_.task().label_names(); }
  std::string task() const { return std::string(classifier_.task().problem_type()); }
  std::string precision() const { return classifier_.precision_name(); }
  int64_t max_length() const { return classifier_.max_length(); }
  Strings unused() const { return classifier_.unused(); }

 private:
  /// Texts, and their words for a model that labels words.
  struct Batch {
    Batch(const BoundClassifier& self, Strings texts, Strings pairs) {
      rows.texts = texts;
      rows.text_pairs = pairs;
      if (!self.classifier_.reads_words()) return;
      TORCH_CHECK_VALUE(pairs.empty(), "the model labels words of single texts; leave the pairs out");
      for (const std::string& text : texts) words.push_back(self.classifier_.tokenizer().split_words(text));
      rows.words = words;
    }
    std::vector<Strings> words;
    TextSpans rows;
  };
  struct Result {
    at::Tensor outputs;
    TokenizedTexts texts;
  };

  Result run(const Batch& batch, int64_t before, bool is_main) {
    std::optional<InterruptNote> note;
    if (is_main) note.emplace();
    auto texts = classifier_.tokenize(batch.rows, before);
    const std::lock_guard lock(mutex_);
    auto outputs = classifier_.outputs(texts, {}, [&](int64_t /*done*/) { return !(note && note->was_interrupted()); });
    if (outputs.defined()) classifier_.check_finite(outputs, before);
    return {std::move(outputs), std::move(texts)};
  }

  Classifier classifier_;
  std::mutex mutex_;  // of outputs(), which one thread may call at a time
};

TORCH_LIBRARY_FRAGMENT(mezzo, m) {
  m.def("find_model", &find_model);
  m.def("int8_warning", [](const std::string& folder) { return int8_warning(folder); });
  m.def("check_classifier_options",
        [](const std::string& precision, const std::string& device, std::optional<int64_t> max_length) {
          check_classifier_options(precision, device, max_length);
        });
  m.class_<BoundTokenizer>("Tokenizer")
      .def(torch::init<const std::string&, bool>())
      .def("encode", &BoundTokenizer::encode)
      .def("encode_words", &BoundTokenizer::encode_words)
      .def("encode_windows", &BoundTokenizer::encode_windows)
      .def("split_words", &BoundTokenizer::split_words)
      .def("token", &BoundTokenizer::token)
      .def("pad_id", &BoundTokenizer::pad_id)
      .def("vocab_size", &BoundTokenizer::vocab_size)
      .def("model_max_length", &BoundTokenizer::model_max_length)
      .def("save", &BoundTokenizer::save);
  m.class_<BoundClassifier>("Classifier")
      .def(torch::init<const std::string&, const std::string&, const std::string&, std::optional<int64_t>>())
      .def("outputs", &BoundClassifier::outputs)
      .def("predict", &BoundClassifier::predict)
      .def("labels", &BoundClassifier::labels)
      .def("task", &BoundClassifier::task)
      .def("precision", &BoundClassifier::precision)
      .def("max_length", &BoundClassifier::max_length)
      .def("unused", &BoundClassifier::unused);
}

}  // namespace
}  // namespace mezzo::text
