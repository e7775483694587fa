#include "text/tune/trial_store.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "text/io/content_hash.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

constexpr int kApplication = 0x6D7A7A6F, kVersion = 3;  // "mzzo"

constexpr const char* kTables = R"(
  CREATE TABLE recipe (name TEXT PRIMARY KEY, value TEXT NOT NULL);
  CREATE TABLE metric (name TEXT NOT NULL, greater_is_better INTEGER NOT NULL, hash TEXT NOT NULL);
  CREATE TABLE trials (number INTEGER PRIMARY KEY, state TEXT NOT NULL, message TEXT NOT NULL, hash TEXT NOT NULL);
  CREATE TABLE settings (trial INTEGER NOT NULL REFERENCES trials, place INTEGER NOT NULL, name TEXT NOT NULL,
                         value TEXT NOT NULL, PRIMARY KEY (trial, place));
  CREATE TABLE scores (trial INTEGER NOT NULL REFERENCES trials, rung INTEGER NOT NULL, share REAL NOT NULL,
                       step INTEGER NOT NULL, value REAL, loss REAL, seconds REAL NOT NULL, PRIMARY KEY (trial, rung));
)";

constexpr std::array<const char*, 4> kStates = {"waiting", "dropped", "finished", "failed"};

// SQLite does not see what has changed within a value.

std::string hash_of(const std::string& contents) {
  ContentHash hash;
  hash.update(contents.data(), contents.size());
  return hash.hex();
}

/// Of all but the settings, which are drawn anew and compared.
std::string hash_of(const Trial& trial) {
  std::string contents = fmt::format("{}\n{}\n{}", trial.number, state_name(trial.state), trial.message);
  for (const auto& score : trial.scores) {
    // As SQLite gives it back: it knows one 0 and no NaN.
    const auto read = [](double value) { return std::isnan(value) ? std::nan("") : value + 0.0; };
    contents +=
        fmt::format("\n{} {} {} {} {}", score.share, score.step, read(score.value), read(score.loss), score.seconds);
  }
  return hash_of(contents);
}

std::string hash_of(const SearchMetric& metric) {
  return hash_of(fmt::format("{} {}", metric.name, metric.greater_is_better));
}

const char* remedy_for(int error) {
  switch (error & 0xFF) {  // the rest tells more of the same
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return "another program holds it; try again when that has ended";
    case SQLITE_CANTOPEN:
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_PERM:
    case SQLITE_READONLY: return "see that there is room and that it may be written, and try again";
    default: return "it was damaged or changed; pass another --output";
  }
}

/// While it lives, SQLite gives up where it takes many more steps than the file has bytes, as where pages of a made-up
/// file point to the same ones.
class ReadingLimit {
 public:
  ReadingLimit(sqlite3* database, const std::filesystem::path& file) : database_(database) {
    std::error_code unknown;
    const auto size = std::filesystem::file_size(file, unknown);
    left_ += unknown ? 0 : static_cast<int64_t>(kStepsOfAByte * size / kStepsAtATime);
    sqlite3_progress_handler(
        database, kStepsAtATime, [](void* left) { return int{--*static_cast<int64_t*>(left) < 0}; }, &left_);
  }
  ~ReadingLimit() { sqlite3_progress_handler(database_, 0, nullptr, nullptr); }
  ReadingLimit(const ReadingLimit&) = delete;
  ReadingLimit& operator=(const ReadingLimit&) = delete;

 private:
  static constexpr int kStepsAtATime = 1000, kStepsOfAByte = 10;  // a row of some forty bytes takes as many
  sqlite3* database_;
  int64_t left_ = 1000;
};

}  // namespace

std::string state_name(Trial::State state) { return kStates.at(static_cast<size_t>(state)); }

void TrialStore::Close::operator()(sqlite3* database) const { sqlite3_close_v2(database); }

/// One SQL statement; bind, then step.
class TrialStore::Statement {
 public:
  Statement(TrialStore& store, const char* sql) : store_(store) {
    if (sqlite3_prepare_v2(store.database_.get(), sql, -1, &statement_, nullptr) != SQLITE_OK) {
      store.fail();
    }
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(int64_t number) { return check(sqlite3_bind_int64(statement_, ++bound_, number)); }
  Statement& bind(double number) {  // SQLite knows no NaN
    return check(std::isnan(number) ? sqlite3_bind_null(statement_, ++bound_)
                                    : sqlite3_bind_double(statement_, ++bound_, number));
  }
  Statement& bind(const std::string& text) {
    return check(sqlite3_bind_text64(statement_, ++bound_, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
  }

  /// Whether there is a row.
  bool step() {
    const int result = sqlite3_step(statement_);
    if (result != SQLITE_ROW && result != SQLITE_DONE) {
      store_.fail();
    }
    return result == SQLITE_ROW;
  }

  int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  double number(int column) const {
    return sqlite3_column_type(statement_, column) == SQLITE_NULL ? std::numeric_limits<double>::quiet_NaN()
                                                                  : sqlite3_column_double(statement_, column);
  }
  std::string text(int column) const {
    const auto* const begin = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return begin == nullptr ? std::string() : std::string(begin, sqlite3_column_bytes(statement_, column));
  }

 private:
  Statement& check(int result) {
    if (result != SQLITE_OK) {
      store_.fail();
    }
    return *this;
  }

  TrialStore& store_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

TrialStore::TrialStore(const std::filesystem::path& file,
                       const Trial::Settings& recipe,
                       std::vector<Trial>& trials,
                       bool has_begun)
    : file_(file) {
  sqlite3* database = nullptr;
  const int result = sqlite3_open_v2(file.c_str(), &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  database_.reset(database);
  if (result != SQLITE_OK) {
    fail();
  }
  constexpr int kWait = 30'000;  // ms, for one who reads the file meanwhile
  sqlite3_busy_timeout(database, kWait);
  std::optional<ReadingLimit> limit(std::in_place, database, file);
  execute("PRAGMA foreign_keys = ON; PRAGMA synchronous = EXTRA;");
  Statement tables(*this, "SELECT count(*) FROM sqlite_schema");
  Statement application(*this, "PRAGMA application_id"), version(*this, "PRAGMA user_version");
  tables.step();
  application.step();
  version.step();
  if (tables.integer(0) == 0 && application.integer(0) == 0) {
    TORCH_CHECK_VALUE(!has_begun, file.string(), ": is empty, though there are trials; pass another --output.");
    limit.reset();
    begin(recipe, trials);
    return;
  }
  TORCH_CHECK_VALUE(application.integer(0) == kApplication, file.string(),
                    ": is a database, but not of a search; pass another --output.");
  TORCH_CHECK_VALUE(version.integer(0) == kVersion, file.string(), ": is a search of format ", version.integer(0),
                    ", and this mezzo reads format ", kVersion,
                    "; go on with the version that wrote it, or pass another --output.");
  for (Statement parts(*this, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL"); parts.step();) {
    TORCH_CHECK_VALUE(
        std::string_view(kTables).find(parts.text(0)) != std::string_view::npos, file.string(),
        ": has tables, indexes, views or triggers that no search makes; drop them, or pass another --output.");
  }
  check_recipe(recipe);
  auto stored = read();
  for (size_t i = 0; i < std::max(trials.size(), stored.size()); ++i) {
    TORCH_CHECK_VALUE(i < trials.size() && i < stored.size() && trials[i].settings == stored[i].settings, file.string(),
                      ": trial ", i + 1,
                      " has other settings than this search draws; it was changed, or is another "
                      "version's. Pass another --output.");
  }
  trials = std::move(stored);
}

void TrialStore::fail() const {
  TORCH_CHECK(database_, file_.string(), ": there is no memory left for SQLite.");
  const std::string what = sqlite3_errcode(database_.get()) == SQLITE_INTERRUPT
                               ? "takes far more steps to read than it has bytes"
                               : in_one_line(sqlite3_errmsg(database_.get()));
  const char* const remedy = remedy_for(sqlite3_errcode(database_.get()));
  if (sqlite3_get_autocommit(database_.get()) == 0) {  // or the next change would tell of this one, not of the cause
    sqlite3_exec(database_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  TORCH_CHECK(false, file_.string(), ": ", what, "; ", remedy, ".");
}

void TrialStore::execute(const char* sql) {
  if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) {
    fail();
  }
}

void TrialStore::begin(const Trial::Settings& recipe, const std::vector<Trial>& trials) {
  execute("BEGIN");
  execute(kTables);
  execute(("PRAGMA application_id = " + std::to_string(kApplication)).c_str());
  execute(("PRAGMA user_version = " + std::to_string(kVersion)).c_str());
  for (const auto& [name, value] : recipe) {
    Statement(*this, "INSERT INTO recipe VALUES (?, ?)").bind(name).bind(value).step();
  }
  for (const Trial& trial : trials) {
    Statement(*this, "INSERT INTO trials VALUES (?, ?, ?, ?)")
        .bind(trial.number)
        .bind(state_name(trial.state))
        .bind(trial.message)
        .bind(hash_of(trial))
        .step();
    for (size_t place = 0; place < trial.settings.size(); ++place) {
      const auto& [name, value] = trial.settings[place];
      Statement(*this, "INSERT INTO settings VALUES (?, ?, ?, ?)")
          .bind(trial.number)
          .bind(static_cast<int64_t>(place))
          .bind(name)
          .bind(value)
          .step();
    }
  }
  execute("COMMIT");
}

void TrialStore::check_recipe(const Trial::Settings& recipe) {
  std::map<std::string, std::string> then, now(recipe.begin(), recipe.end());
  for (Statement rows(*this, "SELECT name, value FROM recipe"); rows.step();) {
    then.emplace(rows.text(0), rows.text(1));
  }
  const auto shown = [](const std::map<std::string, std::string>& of, const std::string& name) {
    const auto found = of.find(name);
    return found == of.end() ? std::string("not set") : in_one_line("'" + found->second + "'");
  };
  for (const auto& both : {then, now}) {
    for (const auto& [name, value] : both) {
      TORCH_CHECK_VALUE(shown(then, name) == shown(now, name), file_.string(), ": is a search with ", in_one_line(name),
                        " ", shown(then, name), ", which is ", shown(now, name),
                        " now; set it back to go on, or pass another --output.");
    }
  }
}

std::vector<Trial> TrialStore::read() {
  std::vector<Trial> trials;
  std::vector<std::string> hashes;
  for (Statement rows(*this, "SELECT number, state, message, hash FROM trials ORDER BY number"); rows.step();) {
    Trial trial{.number = rows.integer(0), .settings = {}, .message = rows.text(2)};
    const auto state = std::ranges::find(kStates, rows.text(1));
    TORCH_CHECK_VALUE(state != kStates.end() && trial.number == std::ssize(trials) + 1, file_.string(), ": trial ",
                      trial.number, " has a state or a number that no search gives; pass another --output.");
    trial.state = static_cast<Trial::State>(state - kStates.begin());
    trials.push_back(std::move(trial));
    hashes.push_back(rows.text(3));
  }
  const auto trial_of = [&](int64_t number) -> Trial& {
    TORCH_CHECK_VALUE(number >= 1 && number <= std::ssize(trials), file_.string(), ": there is no trial ", number,
                      "; pass another --output.");
    return trials[static_cast<size_t>(number) - 1];
  };
  for (Statement rows(*this, "SELECT trial, name, value FROM settings ORDER BY trial, place"); rows.step();) {
    trial_of(rows.integer(0)).settings.emplace_back(rows.text(1), rows.text(2));
  }
  for (Statement rows(*this, "SELECT trial, rung, share, step, value, loss, seconds FROM scores ORDER BY trial, rung");
       rows.step();) {
    Trial& trial = trial_of(rows.integer(0));
    TORCH_CHECK_VALUE(rows.integer(1) == std::ssize(trial.scores), file_.string(), ": trial ", trial.number,
                      " lacks a score, or has one twice; pass another --output.");
    trial.scores.push_back({rows.number(2), rows.integer(3), rows.number(4), rows.number(5), rows.number(6)});
  }
  const bool has_metric = metric().has_value();
  for (const Trial& trial : trials) {
    TORCH_CHECK_VALUE(hash_of(trial) == hashes[static_cast<size_t>(trial.number) - 1], file_.string(), ": trial ",
                      trial.number, " is not as it was written; pass another --output.");
    TORCH_CHECK_VALUE(has_metric || trial.scores.empty(), file_.string(),
                      ": has scores, but not what they are of; pass another --output.");
  }
  return trials;
}

std::optional<SearchMetric> TrialStore::metric() {
  Statement row(*this, "SELECT name, greater_is_better, hash FROM metric");
  if (!row.step()) {
    return std::nullopt;
  }
  const SearchMetric metric{row.text(0), row.integer(1) != 0};
  TORCH_CHECK_VALUE(hash_of(metric) == row.text(2), file_.string(),
                    ": its metric is not as it was written; pass another --output.");
  return metric;
}

void TrialStore::set_metric(const SearchMetric& metric) {
  execute("BEGIN");
  execute("DELETE FROM metric");
  Statement(*this, "INSERT INTO metric VALUES (?, ?, ?)")
      .bind(metric.name)
      .bind(int64_t{metric.greater_is_better})
      .bind(hash_of(metric))
      .step();
  execute("COMMIT");
}

void TrialStore::update(const Trial& trial) {
  execute("BEGIN");
  Statement(*this, "UPDATE trials SET state = ?, message = ?, hash = ? WHERE number = ?")
      .bind(state_name(trial.state))
      .bind(trial.message)
      .bind(hash_of(trial))
      .bind(trial.number)
      .step();
  for (size_t rung = 0; rung < trial.scores.size(); ++rung) {
    const auto& score = trial.scores[rung];
    Statement(*this, "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?, ?)")
        .bind(trial.number)
        .bind(static_cast<int64_t>(rung))
        .bind(score.share)
        .bind(score.step)
        .bind(score.value)
        .bind(score.loss)
        .bind(score.seconds)
        .step();
  }
  execute("COMMIT");
}

}  // namespace mezzo::text
