#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mezzo/text/data/rows.h"
#include "mezzo/text/tokenizers/tokenizer.h"

namespace mezzo::text {

/// Token ids of texts, and what belongs to them.
struct TokenizedTexts {
  Rows<int32_t> ids;
  /// The ids that each window of a text has, of which its ids are one after the other; none at all where no text has
  /// more than one.
  Rows<int32_t> window_lengths = {};
  Rows<int32_t> token_types = {};  ///< as long as the ids each; none at all where all are 0
  /// As long as the ids each: the word of its text that a token is of, -1 for special ones; none at all where words are
  /// not known.
  Rows<int32_t> word_ids = {};
  /// Row i is text i's; undefined where there are none. Where words are known, [N, longest] int32: of the first token
  /// of a word the word's, of others kNoTarget.
  at::Tensor targets = {};
  int64_t truncated = 0;    ///< texts that lost their end
  int64_t lost_tokens = 0;  ///< of them all, where they were counted

  static constexpr int32_t kNoTarget = -100;  ///< as PyTorch's losses ignore it
  /// Tokens of the longest sequence that a text makes.
  int64_t longest(int64_t text) const;
  int64_t num_windows(int64_t text) const;
  int64_t count_tokens() const;
  /// How many targets those texts have, which the loss of a step is the mean of.
  int64_t count_targets(std::span<const int64_t> indices) const;
};

/// Some of `texts`, without targets.
TokenizedTexts subspan(const TokenizedTexts& texts, int64_t begin, int64_t count);

/// Puts texts behind others that the same tokenizer made; they are left empty. No targets.
void append(TokenizedTexts& texts, TokenizedTexts&& more);

struct TokenizeOptions {
  /// Whether to count what texts lose that are cut, which are encoded once more for that, whole.
  bool count_lost = false;
  std::shared_ptr<RowMemory> memory = nullptr;       ///< of the ids; null: all in memory
  std::function<void(int64_t texts)> on_texts = {};  ///< called now and then with how many are done
};

/// Encodes texts, or pairs of texts, in parallel. No targets.
/// @param text_pairs  as many as `texts`; none where these stand alone
/// @param max_length  as of Tokenizer::encode
TokenizedTexts tokenize(const Tokenizer& tokenizer,
                        const Texts& texts,
                        const Texts& text_pairs,
                        int64_t max_length,
                        const TokenizeOptions& options = {});

/// Encodes texts whose words are known, in parallel. No targets.
TokenizedTexts tokenize(const Tokenizer& tokenizer,
                        std::span<const std::vector<std::string>> words,
                        int64_t max_length,
                        const TokenizeOptions& options = {});

/// Encodes texts as windows, in parallel: see Tokenizer::encode_windows(). No targets.
TokenizedTexts tokenize_windows(const Tokenizer& tokenizer,
                                const Texts& texts,
                                int64_t max_length,
                                int64_t stride,
                                const TokenizeOptions& options = {});

/// What the cut of texts costs, for a note: "cut to 128 tokens: 2.5 % of all tokens are not read".
/// @param read, lost  tokens of all texts, special ones included.
std::string describe_cut(int64_t max_length, int64_t read, int64_t lost);

/// Sets the targets.
/// @param targets  as a Task makes them; where words are known, [N, most words] int32, kNoTarget behind a text's last.
void set_targets(TokenizedTexts& texts, const at::Tensor& targets);

/// Refuses a text of which the tokenizer makes no token, as one without special tokens makes of " ": a model has
/// nothing to read there.
/// @param place  names a text, by its number from 0.
/// @throws c10::ValueError  naming the first.
void check_has_tokens(const TokenizedTexts& texts, const std::function<std::string(int64_t)>& place);

/// Refuses texts whose words are known and of none of which a model reads a token.
/// @param texts  with targets.
/// @throws c10::ValueError  naming the file.
void check_reads_words(const TokenizedTexts& texts, const std::string& file, int64_t max_length);

}  // namespace mezzo::text
