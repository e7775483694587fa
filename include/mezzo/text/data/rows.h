#pragma once

#include "mezzo/cpp20.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace mezzo::text {

/// Limits the bytes of rows in memory. Further rows go to unlinked files that are mapped. The
/// kernel then writes their pages to the disk and reads them again as it needs memory. Thread-safe.
class RowMemory {
 public:
  /// @param folder  folder of the files; it should be on a disk
  RowMemory(int64_t limit_bytes, std::filesystem::path folder) : limit_(limit_bytes), folder_(std::move(folder)) {}

  /// The limit in bytes.
  int64_t limit() const { return limit_; }
  /// The folder of the files.
  const std::filesystem::path& folder() const { return folder_; }
  /// The bytes of all current rows in memory.
  int64_t bytes_in_memory() const { return in_memory_; }
  /// The bytes of all current rows in files.
  int64_t bytes_in_files() const { return in_files_; }

 private:
  friend class RowArena;
  const int64_t limit_;
  const std::filesystem::path folder_;
  std::atomic<int64_t> in_memory_ = 0, in_files_ = 0;
};

/// The bytes of rows, in blocks that never move. Not thread-safe.
class RowArena {
 public:
  /// @param memory  null: all in memory
  explicit RowArena(std::shared_ptr<RowMemory> memory) : memory_(std::move(memory)) {}
  ~RowArena();
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;

  /// @return `bytes` bytes, aligned for any number
  /// @throws c10::Error  if the disk is full
  std::byte* allocate(size_t bytes);
  /// Whether a file holds rows.
  bool has_file() const { return file_ >= 0; }
  /// The number of bytes allocated before `bytes`, which belongs to this arena.
  int64_t offset(const void* bytes) const;

 private:
  struct Block {
    std::byte* bytes;
    size_t size;
    bool is_mapped;
  };
  Block new_block(size_t size);

  std::shared_ptr<RowMemory> memory_;
  std::vector<Block> blocks_;
  std::map<const void*, int64_t> offsets_;  // of the blocks
  size_t used_ = 0;                         // of the last
  int64_t file_size_ = 0;
  int file_ = -1;
};

/// Rows of any length: token ids, or texts. Copies and selections share the elements.
template <class T>
class Rows {
 public:
  /// A view of one row.
  using Row = std::conditional_t<std::is_same_v<T, char>, std::string_view, std::span<const T>>;
  /// A row that owns its elements.
  using Sequence = std::conditional_t<std::is_same_v<T, char>, std::string, std::vector<T>>;
  /// For standard algorithms.
  using value_type = Row;
  /// Iterates over the rows.
  using iterator = typename std::vector<Row>::const_iterator;
  /// Rows do not change through an iterator.
  using const_iterator = iterator;

  Rows() = default;
  /// @param memory  null: all in memory
  explicit Rows(std::shared_ptr<RowMemory> memory) : arena_(std::make_shared<RowArena>(std::move(memory))) {}
  /// Copies the rows.
  Rows(std::initializer_list<Sequence> rows) : Rows(std::span(rows.begin(), rows.size())) {}
  /// Copies the rows.
  Rows(const std::vector<Sequence>& rows) : Rows(std::span(rows)) {}
  /// Copies the rows.
  Rows(std::span<const Sequence> rows) {
    for (const Sequence& row : rows) push_back(row);
  }

  /// The number of rows.
  size_t size() const { return rows_.size(); }
  /// Whether there are rows.
  bool empty() const { return rows_.empty(); }
  /// A row, which must exist.
  Row operator[](size_t row) const { return rows_[row]; }
  /// The first row, which must exist.
  Row front() const { return rows_.front(); }
  /// The first row.
  iterator begin() const { return rows_.begin(); }
  /// The end of the rows.
  iterator end() const { return rows_.end(); }

  /// Appends a copy of the row.
  void push_back(Row row) {
    if (!arena_) arena_ = std::make_shared<RowArena>(nullptr);
    auto* const elements = reinterpret_cast<T*>(arena_->allocate(row.size() * sizeof(T)));
    std::copy(row.begin(), row.end(), elements);
    rows_.emplace_back(elements, row.size());
  }
  /// Appends copies of the rows.
  void append(const Rows& more) {
    for (const Row row : more) push_back(row);
  }

  /// The rows at these places, in their order; empty without rows.
  Rows select(std::span<const int64_t> places) const {
    Rows selected;
    selected.arena_ = arena_;
    selected.rows_.reserve(empty() ? 0 : places.size());
    for (const int64_t place : empty() ? std::span<const int64_t>() : places)
      selected.rows_.push_back(rows_[static_cast<size_t>(place)]);
    return selected;
  }
  /// `count` rows from `begin` on; empty without rows.
  Rows subspan(size_t begin, size_t count) const {
    Rows part;
    part.arena_ = arena_;
    if (empty()) return part;
    const auto rows = std::span(rows_).subspan(begin, count);
    part.rows_.assign(rows.begin(), rows.end());
    return part;
  }

  /// The places of the rows in the order of the file, or unchanged without a file. A file larger
  /// than the memory is read fast only in this order.
  std::vector<int64_t> storage_order() const {
    std::vector<int64_t> order(size());
    std::iota(order.begin(), order.end(), int64_t{0});
    if (arena_ && arena_->has_file()) {
      std::vector<int64_t> offsets;
      for (const Row row : rows_) offsets.push_back(arena_->offset(row.data()));
      std::ranges::stable_sort(order, {}, [&](int64_t i) { return offsets[static_cast<size_t>(i)]; });
    }
    return order;
  }

  /// Equal elements in all rows.
  friend bool operator==(const Rows& a, const Rows& b) {
    return std::ranges::equal(a, b, [](Row x, Row y) { return std::ranges::equal(x, y); });
  }

 private:
  std::vector<Row> rows_;
  std::shared_ptr<RowArena> arena_;
};

/// Texts in UTF-8.
using Texts = Rows<char>;

}  // namespace mezzo::text
