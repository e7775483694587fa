#include "mezzo/text/report/run_records.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

#include "not_finite.h"

namespace mezzo::text {
namespace {

using testing::HasSubstr;

class RunRecordsTest : public testing::Test {
 protected:
  RunRecordsTest() { std::filesystem::create_directories(folder_); }
  ~RunRecordsTest() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& content) const { std::ofstream(path_, std::ios::binary) << content; }

  std::string content() const {
    std::ostringstream out;
    out << std::ifstream(path_, std::ios::binary).rdbuf();
    return out.str();
  }

  std::string error_of_reading(const std::string& file) const {
    write(file);
    try {
      read_run_records(path_);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }

  std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("run_records_" + std::to_string(::getpid()));
  std::filesystem::path path_ = folder_ / "metrics.jsonl";
};

StepRecord step_record(int64_t step) {
  return {.step = step,
          .epoch = 0.003,
          .loss = 1.79,
          .lr = 3e-5,
          .grad_norm = 2.1,
          .loss_scale = 65536,
          .skipped = false,
          .samples = 32,
          .tokens = 623,
          .seconds = 0.98};
}

EvalRecord eval_record(int64_t step) {
  return {
      .step = step, .split = "dev", .loss = 1.2, .metrics = {{"accuracy", 0.51}, {"macro_f1", 0.44}}, .seconds = 3.1};
}

EndRecord end_record() {
  return {.steps = 288,
          .minutes = 4.9,
          .samples_per_second = 31.2,
          .tokens_per_second = 607,
          .peak_memory_bytes = 2400000000,
          .best_step = 250};
}

TEST_F(RunRecordsTest, ReadsBackWhatADiagnosisCounted) {
  DiagnoseRecord record;
  record.step = 3;
  record.kind = "gradients";
  record.text = "a\nb";
  record.groups.resize(2);
  record.groups[0].name = "layer 0";
  record.groups[0].zeros = 5;
  record.groups[0].largest = 2.5;
  record.groups[0].counts.front() = 7;
  record.groups[0].counts.back() = 1;
  record.groups[1].name = "nothing but zeros";
  MetricsLog(path_).append(record);
  const auto read = read_run_records(path_).diagnoses.at(0);
  EXPECT_EQ(to_json(read), to_json(record));
  EXPECT_EQ(read.groups.at(0).counts, record.groups.at(0).counts);
  EXPECT_EQ(read.groups.at(1).counts, record.groups.at(1).counts);
  EXPECT_THAT(to_json(record), HasSubstr("\"first_exponent\":0,\"counts\":[]"));
}

TEST_F(RunRecordsTest, ReadsBackWhatRanksExchanged) {
  CommunicationRecord record;
  record.step = 7;
  record.gradient_bytes = int64_t{1} << 50;
  record.exposed_seconds = 0.1;
  MetricsLog(path_).append(record);
  const auto read = read_run_records(path_);
  EXPECT_EQ(to_json(read.communications.at(0)), to_json(record));
  EXPECT_EQ(read.unknown_events, 0);
}

TEST_F(RunRecordsTest, RefusesCountsBeyondTheExponentsOfFloat32) {
  const std::string start =
      R"({"event":"diagnose","step":1,"kind":"gradients","loss_scale":1,"recommended_scale":1,"text":"","groups":)"
      R"([{"name":"a","zeros":0,"non_finite":0,"largest":1,"first_exponent":)";
  for (const char* place : {"-150,\"counts\":[1]", "127,\"counts\":[1,2]", "1e300,\"counts\":[]"}) {
    EXPECT_THAT(error_of_reading(start + place + "}]}\n"), HasSubstr("between -149 and 127")) << place;
  }
  EXPECT_THAT(error_of_reading(start + "0,\"counts\":[-1]}]}\n"), HasSubstr("must be an integer from 0"));
  EXPECT_EQ(error_of_reading(start + "127,\"counts\":[1]}]}\n"), "no error");
}

TEST_F(RunRecordsTest, WritesTheLinesThatAreDocumented) {
  EXPECT_EQ(to_json(step_record(1)),
            R"({"event":"step","step":1,"epoch":0.003,"loss":1.79,"lr":3e-05,"grad_norm":2.1,"loss_scale":65536.0,)"
            R"("skipped":false,"samples":32,"tokens":623,"seconds":0.98})");
  EXPECT_EQ(to_json(eval_record(50)),
            R"({"event":"eval","step":50,"split":"dev","loss":1.2,"accuracy":0.51,"macro_f1":0.44,"seconds":3.1})");
  EvalRecord final = eval_record(50);
  final.is_final = true;
  EXPECT_EQ(to_json(final), R"({"event":"eval","step":50,"split":"dev","loss":1.2,"accuracy":0.51,"macro_f1":0.44,)"
                            R"("seconds":3.1,"final":true})");
  const CommunicationRecord sent{.step = 288,
                                 .ranks = 2,
                                 .steps = 280,
                                 .gradient_bytes = 1000,
                                 .weight_bytes = 0,
                                 .buckets = 560,
                                 .seconds = 1.5,
                                 .exposed_seconds = 0.25};
  EXPECT_EQ(to_json(sent), R"({"event":"communication","step":288,"ranks":2,"steps":280,"gradient_bytes":1000,)"
                           R"("weight_bytes":0,"buckets":560,"seconds":1.5,"exposed_seconds":0.25})");
  EXPECT_EQ(to_json(end_record()),
            R"({"event":"end","steps":288,"minutes":4.9,"samples_per_second":31.2,"tokens_per_second":607.0,)"
            R"("peak_memory_bytes":2400000000,"best_step":250})");
}

TEST_F(RunRecordsTest, PartsOfAStepAreWrittenWhereTheyAreKnown) {
  StepRecord record = step_record(1);
  record.parts = {.batch = 0.01, .forward = 0.25, .backward = 0.5, .update = 0.125};
  const std::string line = to_json(record);
  EXPECT_THAT(line,
              HasSubstr(R"("seconds":0.98,"parts":{"batch":0.01,"forward":0.25,"backward":0.5,"update":0.125}})"));
  write(line + "\n" + to_json(step_record(2)) + "\n");
  const auto steps = read_run_records(path_).steps;
  EXPECT_EQ(to_json(steps.at(0)), line);
  EXPECT_FALSE(steps.at(1).parts);
  EXPECT_THAT(error_of_reading(R"({"event":"step","step":1,"epoch":0,"loss":1,"lr":1,"grad_norm":1,"loss_scale":1,)"
                               R"("skipped":false,"samples":1,"tokens":1,"seconds":1,"parts":[]})"
                               "\n"),
              HasSubstr(":1: \"parts\" must be an object."));
}

TEST_F(RunRecordsTest, ReadsWhatEarlierVersionsWrote) {
  write(R"({"event":"eval","step":50,"split":"dev","loss":1.2,"accuracy":0.51,"macro_f1":0.44,"seconds":3.1})"
        "\n"
        R"({"event":"end","steps":2,"minutes":4.9,"samples_per_second":31.2,"tokens_per_second":607.0,)"
        R"("peak_memory_bytes":24})"
        "\n");
  const RunRecords records = read_run_records(path_);
  EXPECT_FALSE(records.evals.at(0).is_final);
  EXPECT_EQ(records.end->best_step, std::nullopt);
}

TEST_F(RunRecordsTest, ReadsBackTheFinalEvaluationAndTheBestStep) {
  EvalRecord final = eval_record(50);
  final.is_final = true;
  EndRecord without_dev = end_record();
  without_dev.best_step.reset();
  EXPECT_THAT(to_json(without_dev), HasSubstr("\"best_step\":null"));
  write(to_json(eval_record(50)) + "\n" + to_json(final) + "\n" + to_json(without_dev) + "\n" + to_json(end_record()));
  const RunRecords records = read_run_records(path_);
  EXPECT_FALSE(records.evals.at(0).is_final);
  EXPECT_TRUE(records.evals.at(1).is_final);
  EXPECT_EQ(records.end->best_step, 250);
}

TEST_F(RunRecordsTest, ResumeDropsTheFinalEvaluationThoughItsStepIsAnEarlierOne) {
  const std::string kept = to_json(step_record(1)) + "\n" + to_json(eval_record(1)) + "\n";
  EvalRecord final = eval_record(1);
  final.is_final = true;
  write(kept + to_json(final) + "\n");
  MetricsLog::resume(path_, 2);
  EXPECT_EQ(content(), kept);
}

TEST_F(RunRecordsTest, ResumeDropsAnEvaluationThatIsDoneAgain) {
  const std::string kept =
      to_json(step_record(1)) + "\n" + to_json(eval_record(1)) + "\n" + to_json(step_record(2)) + "\n";
  write(kept + to_json(eval_record(2)) + "\n");
  MetricsLog::resume(path_, 2, /*last_eval_step=*/1);
  EXPECT_EQ(content(), kept);
}

TEST_F(RunRecordsTest, WritesNumbersThatJsonLacksAsNullAndReadsThemAsNaN) {
  StepRecord record = step_record(1);
  record.loss = kNaN;
  record.grad_norm = kInf;
  record.skipped = true;
  EXPECT_THAT(to_json(record), HasSubstr(R"("loss":null,"lr":3e-05,"grad_norm":null)"));
  MetricsLog(path_).append(record);
  const StepRecord read = read_run_records(path_).steps.at(0);
  EXPECT_TRUE(std::isnan(read.loss) && std::isnan(read.grad_norm));
  EXPECT_TRUE(read.skipped);
}

TEST_F(RunRecordsTest, ReadsBackTheVeryDoublesItWrote) {
  std::mt19937_64 random(123);
  std::vector<double> expected = {0, -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1.0 / 3, 1e23, 1e22};
  while (expected.size() < 2000) {
    const auto bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (std::isfinite(value)) {
      expected.push_back(value);
    }
  }
  MetricsLog log(path_);
  for (const double value : expected) {
    StepRecord record = step_record(1);
    record.loss = value;
    log.append(record);
  }
  const auto steps = read_run_records(path_).steps;
  ASSERT_EQ(steps.size(), expected.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(std::memcmp(&steps[i].loss, &expected[i], sizeof(double)), 0) << expected[i];
  }
}

TEST_F(RunRecordsTest, ReadsAllKindsAndCountsEventsItDoesNotKnow) {
  write(to_json(step_record(1)) + "\n" + to_json(eval_record(1)) + "\n{\"event\":\"save\",\"step\":1}\n" +
        to_json(end_record()) + "\n");
  const RunRecords records = read_run_records(path_);
  EXPECT_EQ(records.steps.size(), 1u);
  EXPECT_EQ(records.evals.at(0).split, "dev");
  EXPECT_EQ(records.end->peak_memory_bytes, 2400000000);
  EXPECT_EQ(records.unknown_events, 1);
}

TEST_F(RunRecordsTest, WritesASplitThatIsNotUtf8AsValidJson) {
  EvalRecord record = eval_record(1);
  record.split = "d\xff\"\n";
  MetricsLog(path_).append(record);
  EXPECT_EQ(read_run_records(path_).evals.at(0).split, "d\xEF\xBF\xBD\"\n");
}

TEST_F(RunRecordsTest, SaysFileAndLineOfABadLine) {
  const std::string good = to_json(step_record(1)) + "\n";
  const std::string at_line_2 = path_.string() + ":2: ";
  const auto error_after_good = [&](const std::string& line) { return error_of_reading(good + line + "\n" + good); };
  EXPECT_THAT(error_after_good("{\"event\""), HasSubstr(at_line_2 + "not a record of a run, one JSON object a line"));
  EXPECT_THAT(error_after_good(""), HasSubstr(at_line_2));
  EXPECT_THAT(error_after_good("[1]"), HasSubstr(at_line_2 + "not a record of a run: a JSON object with an \"event\""));
  EXPECT_THAT(error_after_good("{\"event\":7}"), HasSubstr(at_line_2));
  EXPECT_THAT(error_after_good(R"({"event":"step","step":1})"), HasSubstr(at_line_2 + "the record lacks \"epoch\"."));
  EXPECT_THAT(error_after_good(R"({"event":"step","step":-1})"),
              HasSubstr(at_line_2 + "\"step\" must be an integer from 0."));
  EXPECT_THAT(error_after_good(R"({"event":"step","step":18446744073709551615})"),
              HasSubstr("\"step\" must be an integer from 0."));
  EXPECT_THAT(error_after_good(R"({"event":"step","step":1.5})"), HasSubstr("\"step\" must be an integer from 0."));
  EXPECT_THAT(error_after_good(R"({"event":"step","step":1,"epoch":"x"})"),
              HasSubstr("\"epoch\" must be a number or null, not a string."));
  EXPECT_THAT(error_after_good(R"({"event":"step","step":1,"epoch":1e999})"), HasSubstr(at_line_2));
  EXPECT_THAT(error_after_good(std::string(2000000, '[')), HasSubstr(at_line_2 + "a line of 2000000 bytes"));
  EXPECT_THAT(error_after_good(std::string(1000000, '[')), HasSubstr(at_line_2));
}

TEST_F(RunRecordsTest, RefusesAFileThatCannotBeReadOrMade) {
  EXPECT_THROW(read_run_records(path_), c10::Error);
  EXPECT_THROW(read_run_records(folder_), c10::Error);
  EXPECT_THROW(MetricsLog(folder_ / "missing" / "metrics.jsonl"), c10::Error);
}

TEST_F(RunRecordsTest, SaysThatTheDiskIsFull) {
  MetricsLog log("/dev/full");
  try {
    log.append(end_record());
    FAIL() << "a lost record went unnoticed";
  } catch (const c10::Error& error) {
    EXPECT_STREQ(error.what_without_backtrace(), "MetricsLog: cannot write to /dev/full: No space left on device");
  }
}

TEST_F(RunRecordsTest, StartsAfreshAndShowsEachLineAtOnce) {
  write("of an earlier run\n");
  MetricsLog log(path_);
  EXPECT_EQ(content(), "");
  log.append(step_record(1));
  EXPECT_EQ(content(), to_json(step_record(1)) + "\n");
  MetricsLog moved = std::move(log);
  moved.append(end_record());
  EXPECT_TRUE(read_run_records(path_).end.has_value());
}

TEST_F(RunRecordsTest, ResumeDropsWhatCameAfterTheStepAndAppends) {
  const std::string kept = to_json(step_record(1)) + "\n{ \"event\" : \"save\", \"step\": 2 }\n" +
                           to_json(step_record(2)) + "\n" + to_json(eval_record(2)) + "\n";
  write(kept + to_json(step_record(3)) + "\n" + to_json(eval_record(3)) + "\n{\"event\":\"save\",\"step\":3}\n" +
        to_json(end_record()) + "\n");
  auto log = MetricsLog::resume(path_, 2);
  EXPECT_EQ(content(), kept);
  log.append(step_record(3));
  EXPECT_EQ(content(), kept + to_json(step_record(3)) + "\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "nothing is left aside";
}

TEST_F(RunRecordsTest, ResumeDropsALastLineThatWasCutOff) {
  const std::string kept = to_json(step_record(1)) + "\n";
  write(kept + to_json(step_record(2)).substr(0, 30));
  MetricsLog::resume(path_, 2).append(step_record(2));
  EXPECT_EQ(content(), kept + to_json(step_record(2)) + "\n");
}

TEST_F(RunRecordsTest, ReadsWhatStandsBeforeALastLineThatWasCutOff) {
  write(to_json(step_record(1)) + "\n" + to_json(step_record(2)).substr(0, 30));
  EXPECT_EQ(read_run_records(path_).steps.size(), 1u);
  write(to_json(step_record(1)) + "\n" + to_json(step_record(2)));
  EXPECT_EQ(read_run_records(path_).steps.size(), 2u) << "only the line feed is missing";
}

TEST_F(RunRecordsTest, ResumeKeepsAWholeLastLineWithoutLineFeed) {
  write(to_json(step_record(1)));
  MetricsLog::resume(path_, 1).append(step_record(2));
  EXPECT_EQ(content(), to_json(step_record(1)) + "\n" + to_json(step_record(2)) + "\n");
}

TEST_F(RunRecordsTest, ALastLineWithoutLineFeedThatIsNoRecordWasCutOff) {
  // Each is JSON, at least to some reader.
  for (const char* line : {"1", "{}", R"({"event": "step", "step": 1e999})"}) {
    write(std::string(R"({"event": "other", "step": 1})") + "\n" + line);
    EXPECT_EQ(read_run_records(path_).unknown_events, 1) << line;
  }
}

TEST_F(RunRecordsTest, ResumeLeavesABrokenFileAsItIs) {
  const std::string broken = to_json(step_record(1)) + "\nnot a record\n" + to_json(step_record(2)) + "\n";
  write(broken);
  EXPECT_THROW(MetricsLog::resume(path_, 1), c10::ValueError);
  EXPECT_EQ(content(), broken);
}

TEST_F(RunRecordsTest, ResumeStartsAMissingFile) {
  MetricsLog::resume(path_, 7).append(step_record(8));
  EXPECT_EQ(read_run_records(path_).steps.at(0).step, 8);
}

}  // namespace
}  // namespace mezzo::text
