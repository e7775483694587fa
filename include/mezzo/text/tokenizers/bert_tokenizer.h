#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "mezzo/text/tokenizers/tokenizer.h"

namespace mezzo::text {

/// How BERT cleans a text before WordPiece: the arguments of
/// `transformers.BertTokenizer`, with its defaults.
struct BertTokenizerOptions {
  /// Lower-cases every character (by itself, so a final sigma is not special).
  TORCH_ARG(bool, do_lower_case) = true;
  /// Decomposes (NFD) and removes non-spacing marks. `nullopt` follows `do_lower_case`.
  TORCH_ARG(std::optional<bool>, strip_accents) = std::nullopt;
  /// Makes each Chinese character a word.
  TORCH_ARG(bool, tokenize_chinese_chars) = true;
  /// Removes control characters and turns all kinds of white space into spaces.
  TORCH_ARG(bool, clean_text) = true;
  /// Most ids the model reads, `[CLS]` and `[SEP]` included; 0: unknown. Kept with the files,
  /// never applied by `encode`.
  TORCH_ARG(int64_t, model_max_length) = 0;
};

/// Turns texts into the ids a BERT model was trained on: cleaning, splitting into words, WordPiece.
/// The ids are those of Hugging Face's fast tokenizer for every input, its Unicode tables included.
/// Special and other added tokens are found in the raw text, so a text that holds "[SEP]" yields
/// the id of `[SEP]`, as there. A text need not be valid UTF-8: each maximal invalid part counts as
/// U+FFFD, as in Python's `decode("utf-8", "replace")`. Thread-safe; copies share their
/// tables.
///
/// @code
/// auto tokenizer = mezzo::text::BertTokenizer::from_pretrained("bert-base-chinese");
/// auto encoding = tokenizer.encode("今天天气很好", /*max_length=*/128);
/// @endcode
///
/// @see transformers.BertTokenizer (Python). Differs: nothing is ever padded, and a vocabulary that
///     lacks one of the five special tokens is refused instead of extended past the model's
///     embeddings.
class BertTokenizer : public Tokenizer {
 public:
  /// Loads a Hugging Face folder as `AutoTokenizer.from_pretrained` does: `tokenizer.json` where
  /// there is one, else `vocab.txt`. As there, the settings of a BERT tokenizer class
  /// (`do_lower_case`, `strip_accents`, `tokenize_chinese_chars`, the special tokens) come from
  /// `tokenizer_config.json`, each with its default, and overrule those of `tokenizer.json`; all of
  /// `tokenizer.json` counts where `tokenizer_class` is `PreTrainedTokenizerFast` or
  /// `TokenizersBackend`, or where the folder has neither `tokenizer_config.json` nor
  /// `config.json`. Its sections "truncation" and "padding" are never used: pass `max_length` to
  /// `encode`, and pad batches where they are made.
  /// @throws c10::ValueError  for a file that is missing, broken, or of another kind of tokenizer
  ///     (BPE, Unigram, another normalizer, pre-tokenizer or template); the message names the file
  ///     and what was found
  static BertTokenizer from_pretrained(const std::filesystem::path& folder);

  /// Loads a `vocab.txt`: a token a line, its line number (from 0) its id. Trailing white space is
  /// no part of a token, and of equal lines the last counts.
  /// @throws c10::ValueError  for a file that is missing, not UTF-8, or without `[PAD]`, `[UNK]`,
  ///     `[CLS]`, `[SEP]` or `[MASK]`
  static BertTokenizer from_vocab(const std::filesystem::path& vocab_txt, const BertTokenizerOptions& options = {});

  /// Encodes one text: `[CLS] text [SEP]`.
  Encoding encode(std::string_view text, int64_t max_length = 0) const override;

  /// Encodes a pair of texts: `[CLS] text [SEP] pair [SEP]`, of which the pair and
  /// its `[SEP]` have the type 1.
  Encoding encode(std::string_view text, std::string_view pair, int64_t max_length = 0) const override;

  std::vector<Encoding> encode_windows(std::string_view text, int64_t max_length, int64_t stride) const override;
  Encoding encode_words(std::span<const std::string> words, int64_t max_length = 0) const override;
  std::vector<std::string> split_words(std::string_view text) const override;

  int32_t pad_id() const override;
  int32_t unk_id() const;
  int32_t cls_id() const;
  int32_t sep_id() const;

  int64_t vocab_size() const override;
  int64_t model_max_length() const override { return options().model_max_length(); }

  const std::string& token(int32_t id) const override;

  const BertTokenizerOptions& options() const;

  /// Writes `vocab.txt` and `tokenizer_config.json`, from which `from_pretrained` and Hugging
  /// Face's `BertTokenizer` make the same ids again. The folder must exist. Each file appears whole
  /// or not at all.
  /// @throws c10::ValueError  where these files cannot express the tokenizer (another subword
  ///     prefix or word length, `clean_text` off, a token that would lose white space), or cannot be
  ///     written
  void save(const std::filesystem::path& folder, const TokenizerSaveOptions& options = {}) const override;

 private:
  struct Impl;
  explicit BertTokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace mezzo::text
