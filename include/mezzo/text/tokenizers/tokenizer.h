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

/// One text, or a pair, as a model reads it: `[CLS] text [SEP]` or `[CLS]
/// text [SEP] pair [SEP]`, say.
struct Encoding {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> token_type_ids;  ///< as long as `input_ids`: 0, and 1 for what a model takes for the pair's
  bool truncated = false;               ///< whether `max_length` cost the text or the pair any token
  std::vector<int32_t> word_ids = {};   ///< of encode_words(): the word each token is of, -1 for special ones
};

/// How Tokenizer::save() writes a tokenizer for a model.
struct TokenizerSaveOptions {
  /// Most ids the model reads; 0: the tokenizer's own.
  TORCH_ARG(int64_t, model_max_length) = 0;
  /// Whether the model takes token_type_ids: ModelConfig::takes_token_types(). Decides, with the tokenizer's own files,
  /// on `model_input_names`: transformers passes no other input to the model.
  TORCH_ARG(bool, token_types) = true;
  /// Whether the model labels words. A tokenizer of bytes then begins each text and word with a space, as
  /// encode_words() does.
  TORCH_ARG(bool, words) = false;
};

/// Turns texts into the ids that a model was trained on, those of Hugging Face's fast tokenizer.
/// Thread-safe: a tokenizer never changes after it is made.
///
/// @code
/// auto tokenizer = mezzo::text::Tokenizer::from_pretrained(mezzo::text::model_folder("bert-base-chinese"));
/// auto encoding = tokenizer->encode("今天天气很好", /*max_length=*/128);
/// @endcode
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Loads the tokenizer of a Hugging Face folder, as `AutoTokenizer.from_pretrained` does.
  ///
  /// - `PreTrainedTokenizerFast` and ModernBERT take all of tokenizer.json: WordPiece, byte-level or plain BPE, or
  ///   Unigram, with normalizers, pre-tokenizers and post-processors.
  /// - BERT, DistilBERT, ELECTRA, RoBERTa, XLM-R, CamemBERT and DeBERTa-v2 take its vocabulary and added
  ///   tokens, and make the rest by `tokenizer_config.json`.
  /// - Without tokenizer.json, BERT reads vocab.txt, and RoBERTa reads vocab.json and merges.txt. The others
  ///   read sentencepiece's model: `sentencepiece.bpe.model` (XLM-R, CamemBERT), `spm.model` (DeBERTa-v2),
  ///   or `tokenizer.model`.
  ///
  /// Unlike transformers, a BERT vocabulary that lacks a special token is refused: the token's id would be beyond the
  /// rows of the model's embedding.
  /// @throws c10::ValueError  for files that are missing, broken, or of a kind that mezzo has not;
  ///     the message names the file and what was found.
  static std::shared_ptr<const Tokenizer> from_pretrained(const std::filesystem::path& folder);

  /// Loads a bare vocabulary: a `vocab.txt` is that of an uncased BERT.
  /// @throws c10::ValueError  as above.
  static std::shared_ptr<const Tokenizer> from_vocab(const std::filesystem::path& vocab);

  /// Encodes one text, which need not be valid UTF-8.
  /// @param max_length  most ids to return, special tokens included; what is too long loses
  ///   its end. 0 means no limit.
  /// @throws c10::ValueError  for a negative `max_length`, or one without
  ///   room for the special tokens.
  virtual Encoding encode(std::string_view text, int64_t max_length = 0) const = 0;

  /// Encodes a pair of texts. Of a pair that is too long, the longer text is shortened first
  /// (Hugging Face's `truncation="longest_first"`).
  virtual Encoding encode(std::string_view text, std::string_view pair, int64_t max_length = 0) const = 0;

  /// Encodes a text whose words are known, each by itself, as Hugging Face's `is_split_into_words=True` does, with
  /// `add_prefix_space=True` for tokenizers of bytes: a word begins with a space there. A word may have no token.
  virtual Encoding encode_words(std::span<const std::string> words, int64_t max_length = 0) const = 0;

  /// The words of a plain text, each a part of the text, in their order: for encode_words().
  ///
  /// An added token is one word. Elsewhere words are BERT's: white space separates them, and each punctuation mark and
  /// Chinese character is one word. A word neither begins nor ends with characters that the tokenizer drops, as BERT's
  /// drops U+FEFF and U+200B. To find added tokens in normalized text, each grapheme cluster is normalized by itself.
  /// @param text  need not be valid UTF-8: each bad sequence becomes U+FFFD
  virtual std::vector<std::string> split_words(std::string_view text) const = 0;

  /// Encodes a text of any length as windows of at most `max_length` ids, special tokens included, each of which begins
  /// with the last `stride` of the text's ids in the one before: Hugging Face's `return_overflowing_tokens=True`.
  /// @throws c10::ValueError  for a `stride` that leaves nothing new to a window, or as encode() does.
  virtual std::vector<Encoding> encode_windows(std::string_view text, int64_t max_length, int64_t stride) const = 0;

  /// One more than the largest id, added tokens included: the rows an embedding needs.
  virtual int64_t vocab_size() const = 0;

  /// Most ids the model reads, special tokens included; 0: unknown. Never applied by `encode`.
  virtual int64_t model_max_length() const = 0;

  /// The id of the token that fills a batch of texts; -1 where there is none.
  virtual int32_t pad_id() const = 0;

  /// The token with this id.
  /// @throws c10::ValueError  where no token has it.
  virtual const std::string& token(int32_t id) const = 0;

  /// Writes files from which `from_pretrained` and Hugging Face make the same ids again. The folder
  /// must exist. Each file appears whole or not at all.
  /// @throws c10::ValueError  where its files cannot express the tokenizer, or cannot be written.
  virtual void save(const std::filesystem::path& folder, const TokenizerSaveOptions& options = {}) const = 0;
};

}  // namespace mezzo::text
