#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo::text {

/// The ids of a text, or of a pair, as a model reads them, e.g. `[CLS] text [SEP]` or `[CLS] text
/// [SEP] pair [SEP]`.
struct Encoding {
  std::vector<int32_t> input_ids;       ///< one per token
  std::vector<int32_t> token_type_ids;  ///< as long as `input_ids`: 0, or 1 for the second text of a pair
  bool truncated = false;               ///< whether `max_length` removed tokens
  std::vector<int32_t> word_ids = {};   ///< of encode_words(): the word of each token, -1 for special tokens
};

/// Options of Tokenizer::save().
struct TokenizerSaveOptions {
  /// The maximum number of ids of the model; 0: the tokenizer's value.
  TORCH_ARG(int64_t, model_max_length) = 0;
  /// Whether the model takes token_type_ids: ModelConfig::takes_token_types(). Decides, with the
  /// tokenizer's files, on `model_input_names`: transformers passes no other input to the model.
  TORCH_ARG(bool, token_types) = true;
  /// Whether the model labels words. A byte-level tokenizer then begins each text and word with a
  /// space, as encode_words() does.
  TORCH_ARG(bool, words) = false;
};

/// Turns texts into token ids, as Hugging Face's fast tokenizer of the model does. Thread-safe: a
/// tokenizer never changes.
///
/// @code
/// auto tokenizer = mezzo::text::Tokenizer::from_pretrained(mezzo::text::model_folder("bert-base-chinese"));
/// auto encoding = tokenizer->encode("今天天气很好", /*max_length=*/128);
/// @endcode
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Loads the tokenizer of a Hugging Face folder, as `AutoTokenizer.from_pretrained` does.
  /// * `PreTrainedTokenizerFast` and ModernBERT use all of tokenizer.json: WordPiece, byte-level or
  ///   plain BPE, or Unigram, with normalizers, pre-tokenizers and post-processors.
  /// * BERT, DistilBERT, ELECTRA, RoBERTa, XLM-R, CamemBERT and DeBERTa-v2 use its vocabulary and
  ///   added tokens, and derive the rest from `tokenizer_config.json`.
  /// * Without tokenizer.json, BERT reads vocab.txt, and RoBERTa reads vocab.json and merges.txt.
  ///   The other families read sentencepiece's model: `sentencepiece.bpe.model` (XLM-R, CamemBERT),
  ///   `spm.model` (DeBERTa-v2), or `tokenizer.model`.
  ///
  /// Unlike transformers, it refuses a BERT vocabulary without all special tokens: the id of a
  /// missing token would be outside the model's embedding.
  /// @throws c10::ValueError  for files that are missing, broken, or of an unsupported kind; the
  ///     message names the file and the problem
  static std::shared_ptr<const Tokenizer> from_pretrained(const std::filesystem::path& folder);

  /// Loads a single vocabulary file. `vocab.txt` is read as the vocabulary of an uncased BERT.
  /// @throws c10::ValueError  as above
  static std::shared_ptr<const Tokenizer> from_vocab(const std::filesystem::path& vocab);

  /// Encodes one text, which may be invalid UTF-8.
  /// @param max_length  maximum number of ids, including special tokens; longer texts are
  ///     truncated. 0: no limit.
  /// @throws c10::ValueError  for a negative `max_length`, or one too small for the special tokens
  virtual Encoding encode(std::string_view text, int64_t max_length = 0) const = 0;

  /// Encodes a pair of texts. If the pair is too long, the longer text is truncated first (Hugging
  /// Face's `truncation="longest_first"`).
  virtual Encoding encode(std::string_view text, std::string_view pair, int64_t max_length = 0) const = 0;

  /// Encodes a text with known words, each separately, as Hugging Face's `is_split_into_words=True`
  /// does. Byte-level tokenizers use `add_prefix_space=True`: a word begins with a space. A word
  /// may have no token.
  virtual Encoding encode_words(std::span<const std::string> words, int64_t max_length = 0) const = 0;

  /// The words of a plain text, each a part of the text, in order: for encode_words().
  ///
  /// An added token is one word. Elsewhere words are BERT's: white space separates them, and each
  /// punctuation mark and Chinese character is one word. A word neither begins nor ends with
  /// characters that the tokenizer drops, such as U+FEFF and U+200B with BERT's. To find added
  /// tokens in normalized text, each grapheme cluster is normalized separately.
  /// @param text  may be invalid UTF-8: each invalid sequence becomes U+FFFD
  virtual std::vector<std::string> split_words(std::string_view text) const = 0;

  /// Encodes a text of any length as windows of at most `max_length` ids, including special tokens.
  /// Each window begins with the last `stride` ids of the window before: Hugging Face's
  /// `return_overflowing_tokens=True`.
  /// @throws c10::ValueError  for a `stride` that leaves no new ids in a window, or as encode()
  ///     does
  virtual std::vector<Encoding> encode_windows(std::string_view text, int64_t max_length, int64_t stride) const = 0;

  /// The largest id plus one, including added tokens: the number of rows of an embedding.
  virtual int64_t vocab_size() const = 0;

  /// The maximum number of ids of the model, including special tokens; 0: unknown. `encode` does
  /// not apply it.
  virtual int64_t model_max_length() const = 0;

  /// The id of the padding token; -1 if there is none.
  virtual int32_t pad_id() const = 0;

  /// The token with this id.
  /// @throws c10::ValueError  for an id without a token
  virtual const std::string& token(int32_t id) const = 0;

  /// Writes files from which `from_pretrained` and Hugging Face produce the same ids. The folder
  /// must exist. Each file is replaced as a whole or not at all.
  /// @throws c10::ValueError  if the files cannot express the tokenizer, or cannot be written
  virtual void save(const std::filesystem::path& folder, const TokenizerSaveOptions& options = {}) const = 0;
};

}  // namespace mezzo::text
