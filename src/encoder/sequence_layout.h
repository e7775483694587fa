#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mezzo::encoder {

/// Rows first_row ... first_row + num_tokens - 1 of a packed batch.
struct Sequence {
  int64_t first_row;
  int64_t num_tokens;
};

/// The places of the sequences in a packed batch. B sequences, T rows. For operators, the class
/// torch.classes.mezzo.SequenceLayout.
class SequenceLayout : public torch::CustomClassHolder {
 public:
  /// @param cu_seqlens  [B + 1] int32 on CPU: sequence b owns rows cu_seqlens[b]
  ///   to cu_seqlens[b + 1] - 1.
  /// @param seqlens  [B] int32 on CPU: how many of them count, from the first; the rest is
  ///   padding that no query sees.
  /// @param num_rows  T; rows from cu_seqlens[B] on are filler that belongs to no sequence.
  /// @throws c10::ValueError  if a sequence has no tokens or too few rows, or rows are out of order, owned twice or
  ///     outside of the batch. Kernels write to rows unchecked.
  SequenceLayout(const at::Tensor& cu_seqlens, const at::Tensor& seqlens, int64_t num_rows, const at::Device& device);

  /// Of sequences that the device alone knows, so that a step which is recorded into a graph can
  /// be replayed with others.
  /// @param table  as table() returns it; not checked, though kernels go by it
  /// @param longest  tokens; no sequence will have more
  SequenceLayout(const at::Tensor& table, int64_t num_rows, int64_t longest);

  /// Sequences of similar length, side by side: G of them, padded to the longest, L.
  struct Group {
    int64_t size;          ///< G
    int64_t max_seqlen;    ///< L
    at::Tensor pad_index;  ///< [G * L] int64: row of token i of sequence g, or row 0 if there is none
    at::Tensor key_mask;   ///< [G, 1, 1, L] bool: whether that token exists
  };

  /// Padding for those who cannot do without: made when first asked for. Not
  /// for several threads at once.
  struct Padding {
    std::vector<Group> groups;  ///< together, every sequence once
    at::Tensor unpad_index;     ///< [T] int64: place of each row in the groups' rows, laid end to end; 0 for filler
  };
  const Padding& padding() const;

  /// @throws c10::ValueError  unless each tensor of `rows` is [T, H], and H
  ///   a multiple of `num_heads`.
  void check(at::ArrayRef<at::Tensor> rows, int64_t num_heads) const;

  /// Whether the sequences lie side by side from row 0 on, without padding.
  bool is_gapless() const;
  /// @throws c10::Error  if the device alone knows them; so do is_gapless() and padding()
  const std::vector<Sequence>& sequences() const;
  bool is_known() const { return is_known_; }                   ///< by the CPU, too
  int64_t size() const { return table_.size(0); }               ///< B
  int64_t longest() const { return longest_; }                  ///< tokens that no sequence has more of
  const at::Tensor& table() const { return table_; }            ///< [B, 2] int32: first_row and num_tokens of each
  const at::Tensor& first_rows() const { return first_rows_; }  ///< [B] int64: the row of each sequence's first token

 private:
  std::vector<Sequence> sequences_;
  int64_t num_rows_, longest_ = 0;
  bool is_known_ = true;
  at::Tensor table_, first_rows_;
  mutable std::optional<Padding> padding_;
};

using SequenceLayoutPtr = c10::intrusive_ptr<SequenceLayout>;

/// Its type in schemas, which is registered by now.
const std::string& sequence_layout_schema();

}  // namespace mezzo::encoder
