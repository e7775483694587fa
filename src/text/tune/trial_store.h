#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/text/tune/search.h"

struct sqlite3;

namespace mezzo::text {

/// "waiting", "dropped", "finished" or "failed", as records have it.
std::string state_name(Trial::State state);

struct SearchMetric {
  std::string name;  ///< as in metrics.jsonl
  bool greater_is_better = true;
};

/// The trials of a search in an SQLite database: what is written is on the disk when a call returns. Tables: `recipe`
/// (name, value), `metric` (name, greater_is_better, hash), `trials` (number, state, message, hash), `settings` (trial,
/// place, name, value) and `scores` (trial, rung, share, step, value, loss, seconds). A hash is of what its row says
/// and, for a trial, its scores.
class TrialStore {
 public:
  /// Makes the file with `trials`, as they are drawn, or opens it, and gives back what it holds of them.
  /// @param has_begun  whether trials have run, so that the file is not to be made.
  /// @throws c10::ValueError  where it holds no search, one of another version, or with another recipe, which is named,
  ///   or other trials, or is not as it was written.
  TrialStore(const std::filesystem::path& file,
             const Trial::Settings& recipe,
             std::vector<Trial>& trials,
             bool has_begun = false);

  /// What trials are compared by; nullopt until the first tells.
  std::optional<SearchMetric> metric();
  void set_metric(const SearchMetric& metric);

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
