#include "mezzo/text/report/run_records.h"

#include <c10/util/Exception.h>
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "mezzo/text/io/atomic_file.h"
#include "text/io/append_file.h"
#include "text/io/durable_files.h"
#include "text/io/json.h"

namespace mezzo::text {
namespace {

using Json = nlohmann::ordered_json;
using Metrics = decltype(EvalRecord::metrics);

constexpr size_t kMaxLineBytes = 1 << 20;  // a record has some 200; a file that is not a metrics.jsonl stops here

/// The keys of each record, for writing and reading.
template <class Record, class Visit>
void visit_fields(Record& record, Visit&& visit) {
  using Kind = std::remove_const_t<Record>;
  if constexpr (std::is_same_v<Kind, StepRecord>) {
    visit("step", record.step);
    visit("epoch", record.epoch);
    visit("loss", record.loss);
    visit("lr", record.lr);
    visit("grad_norm", record.grad_norm);
    visit("loss_scale", record.loss_scale);
    visit("skipped", record.skipped);
    visit("samples", record.samples);
    visit("tokens", record.tokens);
    visit("seconds", record.seconds);
    visit("parts", record.parts);
  } else if constexpr (std::is_same_v<Kind, StepParts>) {
    visit("batch", record.batch);
    visit("forward", record.forward);
    visit("backward", record.backward);
    visit("update", record.update);
  } else if constexpr (std::is_same_v<Kind, EvalRecord>) {
    visit("step", record.step);
    visit("split", record.split);
    visit("loss", record.loss);
    visit("metrics", record.metrics);
    visit("seconds", record.seconds);
    visit("never_predicted", record.never_predicted);
    visit("majority_baseline", record.majority_baseline);
  } else if constexpr (std::is_same_v<Kind, WarningRecord>) {
    visit("step", record.step);
    visit("kind", record.kind);
    visit("text", record.text);
  } else if constexpr (std::is_same_v<Kind, DiagnoseRecord>) {
    visit("step", record.step);
    visit("kind", record.kind);
    visit("loss_scale", record.loss_scale);
    visit("recommended_scale", record.recommended_scale);
    visit("text", record.text);
    visit("groups", record.groups);
  } else if constexpr (std::is_same_v<Kind, CommunicationRecord>) {
    visit("step", record.step);
    visit("ranks", record.ranks);
    visit("steps", record.steps);
    visit("gradient_bytes", record.gradient_bytes);
    visit("weight_bytes", record.weight_bytes);
    visit("buckets", record.buckets);
    visit("seconds", record.seconds);
    visit("exposed_seconds", record.exposed_seconds);
  } else {
    static_assert(std::is_same_v<Kind, EndRecord>);
    visit("steps", record.steps);
    visit("minutes", record.minutes);
    visit("samples_per_second", record.samples_per_second);
    visit("tokens_per_second", record.tokens_per_second);
    visit("peak_memory_bytes", record.peak_memory_bytes);
    visit("best_step", record.best_step);
  }
}

/// Counts from the first exponent that occurs to the last; none where all values are 0.
Json to_json_value(const GradientExponents& group) {
  const auto is_counted = [](int64_t count) { return count > 0; };
  const auto first = std::find_if(group.counts.begin(), group.counts.end(), is_counted);
  const auto last = std::find_if(group.counts.rbegin(), group.counts.rend(), is_counted).base();
  return {
      {"name", group.name},
      {"zeros", group.zeros},
      {"non_finite", group.non_finite},
      {"largest", group.largest},
      {"underflowed", group.underflowed},
      {"first_exponent", first == group.counts.end() ? 0 : GradientExponents::kLowest + (first - group.counts.begin())},
      {"counts", first == group.counts.end() ? std::vector<int64_t>() : std::vector<int64_t>(first, last)}};
}

Json to_json_value(const std::vector<GradientExponents>& groups) {
  Json array = Json::array();
  for (const GradientExponents& group : groups) {
    array.push_back(to_json_value(group));
  }
  return array;
}

Json to_json_value(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(); }

template <class Value>
const Value& to_json_value(const Value& value) {
  return value;
}

template <class Value>
void add_member(Json& json, const char* key, const Value& value) {
  json[key] = to_json_value(value);
}

void add_member(Json& json, const char* key, const std::optional<StepParts>& parts) {
  if (parts) {
    visit_fields(*parts, [&](const char* part, double seconds) { json[key][part] = seconds; });
  }
}

void add_member(Json& json, const char* key, const std::vector<std::string>& names) {
  if (!names.empty()) json[key] = names;
}

void add_member(Json& json, const char* key, const std::optional<double>& value) {
  if (value) json[key] = *value;
}

/// Metrics are members of the record itself: {"loss":1.2,"accuracy":0.5,…}
void add_member(Json& json, const char*, const Metrics& metrics) {
  for (const auto& [name, value] : metrics) {
    json[name] = value;
  }
}

/// A line's place, for error messages.
struct Place {
  const std::filesystem::path& path;
  int64_t line;
};

std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << place.path.string() << ":" << place.line << ": ";
}

void read_value(const Place& place, const char* key, const Json& json, double& value) {
  TORCH_CHECK_VALUE(json.is_number() || json.is_null(), place, "\"", key, "\" must be a number or null, not a ",
                    json.type_name(), ".");
  value = json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

void read_value(const Place& place, const char* key, const Json& json, int64_t& value) {
  const bool fits = json.is_number_integer() &&
                    !(json.is_number_unsigned() && json.get<uint64_t>() > std::numeric_limits<int64_t>::max());
  TORCH_CHECK_VALUE(fits && json.get<int64_t>() >= 0, place, "\"", key, "\" must be an integer from 0.");
  value = json.get<int64_t>();
}

void read_value(const Place& place, const char* key, const Json& json, bool& value) {
  TORCH_CHECK_VALUE(json.is_boolean(), place, "\"", key, "\" must be true or false, not a ", json.type_name(), ".");
  value = json.get<bool>();
}

void read_value(const Place& place, const char* key, const Json& json, std::string& value) {
  TORCH_CHECK_VALUE(json.is_string(), place, "\"", key, "\" must be a string, not a ", json.type_name(), ".");
  value = json.get<std::string>();
}

template <class Value>
void read_member(const Place& place, const Json& object, const char* key, Value& value);

template <class Value>
void read_value(const Place& place, const char* key, const Json& json, std::vector<Value>& values) {
  TORCH_CHECK_VALUE(json.is_array(), place, "\"", key, "\" must be an array, not a ", json.type_name(), ".");
  for (const Json& element : json) {
    read_value(place, key, element, values.emplace_back());
  }
}

void read_value(const Place& place, const char* key, const Json& json, GradientExponents& group) {
  TORCH_CHECK_VALUE(json.is_object(), place, "\"", key, "\" must hold objects, not a ", json.type_name(), ".");
  std::vector<int64_t> counts;
  read_member(place, json, "name", group.name);
  read_member(place, json, "zeros", group.zeros);
  read_member(place, json, "non_finite", group.non_finite);
  read_member(place, json, "largest", group.largest);
  if (json.contains("underflowed")) {  // files of earlier versions lack it
    read_member(place, json, "underflowed", group.underflowed);
  }
  read_member(place, json, "counts", counts);
  const auto first = json.find("first_exponent");
  const bool fits = first != json.end() && first->is_number_integer() && *first >= GradientExponents::kLowest &&
                    *first <= GradientExponents::kHighest &&
                    first->get<int64_t>() + static_cast<int64_t>(counts.size()) <= GradientExponents::kHighest + 1;
  TORCH_CHECK_VALUE(fits, place, "\"first_exponent\" must be an integer that keeps the \"counts\" between ",
                    GradientExponents::kLowest, " and ", GradientExponents::kHighest, ".");
  std::copy(counts.begin(), counts.end(), group.counts.begin() + (first->get<int64_t>() - GradientExponents::kLowest));
}

template <class Value>
void read_member(const Place& place, const Json& object, const char* key, Value& value) {
  const auto found = object.find(key);
  TORCH_CHECK_VALUE(found != object.end(), place, "the record lacks \"", key, "\".");
  read_value(place, key, *found, value);
}

/// May be missing.
void read_member(const Place& place, const Json& object, const char* key, std::vector<std::string>& names) {
  if (const auto found = object.find(key); found != object.end()) read_value(place, key, *found, names);
}

/// May be missing, or null.
template <class Value>
  requires std::is_arithmetic_v<Value>
void read_member(const Place& place, const Json& object, const char* key, std::optional<Value>& value) {
  if (const auto found = object.find(key); found != object.end() && !found->is_null()) {
    read_value(place, key, *found, value.emplace());
  }
}

void read_member(const Place& place, const Json& object, const char* key, std::optional<StepParts>& parts) {
  if (const auto found = object.find(key); found != object.end()) {
    TORCH_CHECK_VALUE(found->is_object(), place, "\"", key, "\" must be an object.");
    visit_fields(parts.emplace(),
                 [&](const char* part, double& seconds) { read_member(place, *found, part, seconds); });
  }
}

/// Every number of an evaluation except its other members.
void read_member(const Place& place, const Json& object, const char*, Metrics& metrics) {
  constexpr std::array<std::string_view, 7> kOthers = {
      "event", "step", "split", "final", "loss", "seconds", "majority_baseline"};
  for (const auto& [name, value] : object.items()) {
    if ((value.is_number() || value.is_null()) && std::ranges::find(kOthers, name) == kOthers.end()) {
      read_value(place, name.c_str(), value, metrics.emplace_back(name, 0).second);
    }
  }
}

template <class Record>
Record read_record(const Place& place, const Json& json) {
  Record record;
  visit_fields(record, [&](const char* key, auto& value) { read_member(place, json, key, value); });
  return record;
}

Json parse_line(const Place& place, const std::string& line) {
  TORCH_CHECK_VALUE(line.size() <= kMaxLineBytes, place, "a line of ", line.size(),
                    " bytes is not a record of a run; is this a metrics.jsonl?");
  const Json json = parse_json(line, c10::str(place, "not a record of a run, one JSON object a line: "));
  const auto event = json.is_object() ? json.find("event") : json.end();
  TORCH_CHECK_VALUE(json.is_object() && event != json.end() && event->is_string(), place,
                    "not a record of a run: a JSON object with an \"event\" was expected.");
  return json;
}

/// Of a record that only a run at its end writes: no run is resumed at that step.
constexpr int64_t kAfterAllSteps = std::numeric_limits<int64_t>::max();

/// Adds the line to `records`. Returns the step it belongs to.
int64_t read_line(const Place& place, const std::string& line, RunRecords& records) {
  const Json json = parse_line(place, line);
  const std::string& event = json["event"].get_ref<const std::string&>();
  const auto add = [&]<class Record>(std::vector<Record>& to) -> Record& {
    return to.emplace_back(read_record<Record>(place, json));
  };
  if (event == "step") return add(records.steps).step;
  if (event == "diagnose") return add(records.diagnoses).step;
  if (event == "communication") return add(records.communications).step;
  if (event == "warning") {
    const int64_t at = add(records.warnings).step;
    return at == 0 ? kAfterAllSteps : at;
  }
  if (event == "eval") {
    EvalRecord& record = add(records.evals);
    if (json.contains("final")) read_member(place, json, "final", record.is_final);
    return record.is_final ? kAfterAllSteps : record.step;
  }
  if (event == "end") {
    records.end = read_record<EndRecord>(place, json);
    return kAfterAllSteps;
  }
  ++records.unknown_events;
  int64_t step = 0;
  if (const auto found = json.find("step"); found != json.end()) {
    read_value(place, "step", *found, step);
  }
  return step;
}

bool is_record(const Place& place, const std::string& line) {
  try {
    parse_line(place, line);
    return true;
  } catch (const c10::ValueError&) {
    return false;
  }
}

/// Calls `visit(place, line)` for each line, but not for a last one that was cut off: when the
/// process died, or the disk was full.
template <class Visit>
void for_each_line(const std::filesystem::path& path, Visit&& visit) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file.is_open() && !std::filesystem::is_directory(path), "Cannot read ", path.string(),
              ", the records of a run.");
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const Place place{path, number};
    const bool is_terminated = !file.eof();
    if (is_terminated || is_record(place, line)) {
      visit(place, line);
    }
  }
  TORCH_CHECK(file.eof(), "Reading ", path.string(), " failed.");
}

/// The lines up to `step`, of evaluations up to `last_eval_step`, as they stand in the file.
std::string lines_until(const std::filesystem::path& path, int64_t step, int64_t last_eval_step) {
  std::string kept;
  for_each_line(path, [&](const Place& place, const std::string& line) {
    RunRecords read;
    if (read_line(place, line, read) <= (read.evals.empty() ? step : last_eval_step)) {
      kept += line + '\n';
    }
  });
  return kept;
}

}  // namespace

std::string to_json(const RunRecord& record) {
  constexpr const char* kEvents[] = {"step", "eval", "diagnose", "communication", "warning", "end"};  // as in RunRecord
  Json json = {{"event", kEvents[record.index()]}};
  const auto add = [&](const char* key, const auto& value) { add_member(json, key, value); };
  std::visit([&](const auto& fields) { visit_fields(fields, add); }, record);
  const auto* eval = std::get_if<EvalRecord>(&record);
  if (eval != nullptr && eval->is_final) json["final"] = true;
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

RunRecords read_run_records(const std::filesystem::path& path) {
  RunRecords records;
  for_each_line(path, [&](const Place& place, const std::string& line) { read_line(place, line, records); });
  return records;
}

MetricsLog::MetricsLog(const std::filesystem::path& path, int flags)
    : file_(std::make_shared<AppendFile>("MetricsLog", path, flags)) {}

MetricsLog::MetricsLog(const std::filesystem::path& path) : MetricsLog(path, O_TRUNC) {}

MetricsLog MetricsLog::resume(const std::filesystem::path& path, int64_t step, std::optional<int64_t> last_eval_step) {
  if (std::filesystem::exists(path)) {
    write_file_atomically(path, lines_until(path, step, last_eval_step.value_or(step)));
  }
  return {path, /*flags=*/0};
}

void MetricsLog::append(const RunRecord& record) {
  file_->unwritten += to_json(record) + '\n';
  write();
}

void MetricsLog::write() {
  TORCH_CHECK(is_name_of(file_->path(), file_->fd()), file_->path().string(),
              ": was removed, moved or replaced while the run was writing it, so the run ends here; if it has "
              "checkpoints, --resume continues from them");
  file_->write();
}

void MetricsLog::flush() {
  write();
  file_->flush();
}

}  // namespace mezzo::text
