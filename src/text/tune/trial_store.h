#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "mezzo/text/tune/search.h"

struct sqlite3;

namespace mezzo::text {

/// The trials of a search in an SQLite database: what is written is on the disk when a call returns. Tables: `recipe`
/// (name, value), `trials` (number, state, message), `settings` (trial, place, name, value) and `scores` (trial, rung,
/// share, step, value, seconds).
class TrialStore {
 public:
  /// Makes the file with `trials`, or opens it, and gives back what it holds.
  /// @throws c10::ValueError  where it holds no search, one of another version, or with another recipe, which is named.
  TrialStore(const std::filesystem::path& file, const Trial::Settings& recipe, std::vector<Trial>& trials);

  /// State and message, and a score that is new.
  void update(const Trial& trial);

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  class Statement;

  void execute(const char* sql);
  void begin(const Trial::Settings& recipe, const std::vector<Trial>& trials);
  void check_recipe(const Trial::Settings& recipe);
  std::vector<Trial> read();
  [[noreturn]] void fail() const;

  std::filesystem::path file_;
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace mezzo::text
