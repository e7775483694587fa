#include "mezzo/text/report/report.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "not_finite.h"
#include "text/report/chart_axis.h"
#include "text/report/confusion_table.h"
#include "text/report/html.h"
#include "text/report/svg_chart.h"

// That pages are well-formed, and curves true to the data, is tests/python/text/test_report.py.

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ReportInput small_run() {
  ReportInput input;
  input.title = "A run";
  for (int64_t step = 1; step <= 4; ++step) {
    input.steps.push_back({.step = step,
                           .epoch = 0.25 * static_cast<double>(step),
                           .loss = 2.0 / static_cast<double>(step),
                           .lr = 3e-5,
                           .grad_norm = 2,
                           .loss_scale = 65536,
                           .skipped = step == 1,
                           .samples = 32,
                           .tokens = 600,
                           .seconds = 2});
  }
  input.evals = {
      {.step = 2, .split = "dev", .loss = 1.2, .metrics = {{"accuracy", 0.5}, {"macro_f1", 0.4}}, .seconds = 3},
      {.step = 4, .split = "dev", .loss = 1.3, .metrics = {{"accuracy", 0.4}, {"macro_f1", 0.3}}, .seconds = 3},
      {.step = 2,
       .split = "test",
       .loss = 1.1,
       .metrics = {{"accuracy", 0.5975}, {"macro_f1", 0.5612}},
       .seconds = 3,
       .is_final = true}};
  input.metrics = {{"accuracy", "accuracy"}, {"macro_f1", "macro F1"}};
  input.best_step = 2;
  input.end = EndRecord{.steps = 4,
                        .minutes = 4.93,
                        .samples_per_second = 31.2,
                        .tokens_per_second = 607,
                        .peak_memory_bytes = 2412345678};
  input.label_names = {"neg", "pos"};
  input.confusion_matrix = {{30, 10}, {5, 55}};
  return input;
}

std::string number(const std::string& name, const std::string& value, const std::string& detail) {
  return "<div class=\"name\">" + name + "</div><div class=\"value\">" + value + "</div><div class=\"detail\">" +
         detail + "</div>";
}

std::vector<std::string> labels(const ChartAxis& axis) {
  std::vector<std::string> out;
  for (const auto& tick : axis.ticks()) {
    out.push_back(tick.label);
  }
  return out;
}

TEST(ReportTest, HeadsThePageWithTheNumbersOfTheRun) {
  const std::string page = render_report(small_run());
  EXPECT_THAT(page, HasSubstr(number("Test accuracy", "59.8 %", "95 % interval: 76.7 % to 90.7 %")));
  EXPECT_THAT(page, HasSubstr(number("Test macro F1", "56.1 %", "loss 1.1")));
  EXPECT_THAT(page, HasSubstr(number("Best step", "2", "dev accuracy 50.0 %")));
  EXPECT_THAT(page, HasSubstr(number("Training time", "4 min 56 s", "4 steps")));
  EXPECT_THAT(page, HasSubstr(number("Samples per second", "31.2", "607 tokens/s")));
  EXPECT_THAT(page, HasSubstr(number("Peak memory", "2.41 GB", "")));
  EXPECT_THAT(page, HasSubstr(number("Skipped steps", "1", "25.0 % of 4")));
}

TEST(ReportTest, SaysWhatARunWithoutEndOrTestHasInstead) {
  ReportInput input = small_run();
  input.evals.pop_back();
  input.end.reset();
  const std::string page = render_report(input);
  EXPECT_THAT(page, HasSubstr(number("Dev accuracy", "50.0 %", "model of step 2")));
  EXPECT_THAT(page, HasSubstr(number("Best step so far", "2", "dev accuracy 50.0 %")));
  EXPECT_THAT(page, HasSubstr(number("Training time", "8.0 s", "4 steps so far")));
  EXPECT_THAT(page, HasSubstr(number("Samples per second", "16", "300 tokens/s")));
  EXPECT_THAT(page, HasSubstr(number("Peak memory", "–", "run has not ended")));
  input.evals.clear();
  EXPECT_THAT(render_report(input), HasSubstr(number("Accuracy", "–", "not evaluated")));
}

TEST(ReportTest, GivesTheFinalEvaluationItsOwnPlace) {
  ReportInput input = small_run();
  input.evals.back().split = "dev";  // as in a run without test
  const std::string page = render_report(input);
  EXPECT_THAT(page, HasSubstr("<tr class=\"best\"><td>2, the best</td><td>dev</td>"));
  EXPECT_THAT(page, HasSubstr("<tr><td>2</td><td>dev, final</td>"));
  EXPECT_THAT(page, Not(HasSubstr("data-y=\"59.75\""))) << "no point of a curve";
  EXPECT_THAT(page, HasSubstr("data-x=\"2\" data-y=\"50\"><title>step 2\nbest model 50</title>"));
}

TEST(ReportTest, SaysWhatWasTrainedWhenAndHowItEnded) {
  ReportInput input = small_run();
  input.title = "MiniLM trained on emotion/train.json";
  input.when = "2026-11-22 23:58 to 23:59 UTC";
  EXPECT_THAT(render_report(input), Not(HasSubstr("class=\"card notice\"")));
  input.notice = "This run failed after step 4 of 9: <why>";
  input.evaluated = "test, model of step 2";
  input.evaluation_report = "accuracy";
  const std::string page = render_report(input);
  EXPECT_THAT(page, HasSubstr("<title>MiniLM trained on emotion/train.json, 2026-11-22 23:58 to 23:59 UTC</title>"));
  EXPECT_THAT(page, HasSubstr("<h1>MiniLM trained on emotion/train.json</h1>\n<p class=\"sub\">2026-11-22 23:58 to"));
  EXPECT_THAT(page, HasSubstr("<p class=\"card notice\">This run failed after step 4 of 9: &lt;why&gt;</p>"));
  EXPECT_THAT(page, HasSubstr("<h2>Quality of test, model of step 2</h2>"));
  EXPECT_THAT(page, HasSubstr("<h3>Classification report</h3>"));
}

TEST(ReportTest, ChartsTheLossScaleOnlyWhereThereIsOne) {
  ReportInput input = small_run();
  EXPECT_THAT(render_report(input), HasSubstr("<b>Loss scale</b>"));
  for (StepRecord& step : input.steps) {
    step.loss_scale = 1;
  }
  EXPECT_THAT(render_report(input), Not(HasSubstr("<b>Loss scale</b>")));
  EXPECT_THAT(render_report(input), HasSubstr("<b>Gradient norm</b>"));
}

TEST(ReportTest, SaysOnceWhatManyStepsWereSkippedFor) {
  ReportInput input = small_run();
  const auto found = [&](int64_t step, const char* kind, const std::string& text) {
    DiagnoseRecord& record = input.diagnoses.emplace_back();
    record.step = step;
    record.kind = kind;
    record.loss_scale = 65536 / static_cast<double>(step);
    record.text = text;
  };
  for (int64_t step = 1; step <= 50; ++step) {
    found(step, "overflow", "gradients");
    found(step, "first_op", "an op\n1" + std::to_string(step));
  }
  found(51, "first_op", "another op");
  const std::string page = render_report(input);
  EXPECT_THAT(page, HasSubstr("step 1, loss scale 65,536; the same up to step 50, loss scale 1,310.7: what overflow"));
  EXPECT_THAT(page, HasSubstr("<pre>an op\n11</pre>"));
  EXPECT_THAT(page, Not(HasSubstr("<pre>an op\n12</pre>")));
  EXPECT_THAT(page, HasSubstr("step 51, loss scale 1,285.0: where it began</p><pre>another op</pre>"));
}

TEST(ReportTest, EscapesEveryString) {
  const std::string evil = "<script>alert('x')</script>\"&\x01\xff";
  ReportInput input = small_run();
  input.title = evil;
  input.evals[0].split = evil;
  input.label_names = {evil, evil};
  input.evaluation_report = evil;
  input.settings = input.environment = {{evil, evil}};
  const std::string page = render_report(input);
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("alert('")));
  EXPECT_THAT(page, Not(HasSubstr("\x01")));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;\xEF\xBF\xBD"));
}

TEST(ReportTest, LoadsNothingAndRunsNothing) {
  const std::string page = render_report(small_run());
  for (const char* loader : {"src=", "url(", "@import", "<script", "<link", "onload"}) {
    EXPECT_THAT(page, Not(HasSubstr(loader)));
  }
  EXPECT_THAT(page, HasSubstr("<a href=\"#Training\">"));
  for (size_t link = page.find("href="); link != std::string::npos; link = page.find("href=", link + 1)) {
    EXPECT_EQ(page.substr(link, 7), "href=\"#") << "links stay within the page";
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(ReportTest, RendersWhateverIsMissingOrBroken) {
  EXPECT_THAT(render_report({}), HasSubstr("no steps recorded"));
  const double awkward[] = {0, -0.0, kNaN, kInf, -kInf, 1e308, -1e308, 5e-324, -1, 1};
  for (const double value : awkward) {
    for (const size_t size : {1, 2, 25}) {
      ReportInput input = small_run();
      StepRecord step = input.steps[0];
      step.loss = step.lr = step.grad_norm = step.loss_scale = step.seconds = step.epoch = value;
      input.steps.assign(size, step);
      input.steps.back().loss = -value;
      input.evals = {{.step = 1,
                      .split = "dev",
                      .loss = value,
                      .metrics = {{"accuracy", value}, {"macro_f1", value}},
                      .seconds = value}};
      input.end = EndRecord{
          .steps = 0, .minutes = value, .samples_per_second = kNaN, .tokens_per_second = kNaN, .peak_memory_bytes = 0};
      const std::string page = render_report(input);
      EXPECT_EQ(page.find("nan"), std::string::npos) << value << " x " << size;
      EXPECT_EQ(page.find("inf"), std::string::npos) << value << " x " << size;
    }
  }
}

TEST(ReportTest, StaysUnderAMegabyteForAHundredThousandSteps) {
  ReportInput input = small_run();
  for (int64_t step = 5; step <= 100000; ++step) {
    StepRecord record = input.steps[static_cast<size_t>(step % 4)];
    record.step = step;
    record.loss = std::fmod(static_cast<double>(step) * 0.618, 1.0);
    record.skipped = step % 2 == 0;
    record.loss_scale = step % 3 == 0 ? 65536 : 32768;
    record.seconds = 1 + std::fmod(static_cast<double>(step) * 0.381, 1.0);
    record.grad_norm = record.seconds;
    input.steps.push_back(record);
    if (step % 50 == 0) {
      input.evals.push_back(input.evals[0]);
      input.evals.back().step = step;
    }
  }
  EXPECT_LT(render_report(input).size(), 1000000u);
}

TEST(ReportTest, RefusesAConfusionMatrixThatIsNotSquare) {
  ReportInput input;
  input.confusion_matrix = {{1, 2}, {3}};
  try {
    render_report(input);
    FAIL() << "accepted";
  } catch (const c10::ValueError& error) {
    EXPECT_STREQ(error.what_without_backtrace(),
                 "render_report: the confusion matrix must be square, got a row of 1 in a matrix of 2 rows.");
  }
}

std::string cells_of_step(const std::string& page, const std::string& step) {
  const auto begin = page.find("<tr><th scope=\"row\">" + step + "</th>", page.find("<h2>Skipped steps</h2>"));
  return begin == std::string::npos ? "" : page.substr(begin, page.find("</tr>", begin) - begin);
}

TEST(ReportTest, SaysWhyEachStepWasSkipped) {
  ReportInput input = small_run();
  input.steps.clear();
  const struct {
    double scale, loss;
    bool skipped;
  } steps[] = {{65536, 1.5, true}, {32768, 1.5, true}, {16384, 1.5, false}, {32768, 1.5, true}, {16384, 1, false},
               {16384, 1, true},   {16384, 1, false},  {16384, kNan, true}, {8192, 1, false}};
  for (const auto& step : steps) {
    input.steps.push_back(
        {.step = std::ssize(input.steps) + 1, .loss = step.loss, .loss_scale = step.scale, .skipped = step.skipped});
  }
  const std::string page = render_report(input);
  EXPECT_THAT(cells_of_step(page, "1"), HasSubstr("the initial scale was too high"));
  EXPECT_THAT(cells_of_step(page, "1"), HasSubstr("<td>1.5</td><td>65,536</td><td>32,768</td>"));
  EXPECT_THAT(cells_of_step(page, "2"), HasSubstr("the initial scale was too high"));
  EXPECT_EQ(cells_of_step(page, "3"), "");
  EXPECT_THAT(cells_of_step(page, "4"), HasSubstr("but not with a lower scale"));
  EXPECT_THAT(cells_of_step(page, "6"), HasSubstr("at any scale"));
  EXPECT_THAT(cells_of_step(page, "8"), HasSubstr("<td>not finite</td>"));
  EXPECT_THAT(cells_of_step(page, "8"), HasSubstr("the loss itself was not finite"));
  for (StepRecord& step : input.steps) {
    step.skipped = false;
  }
  EXPECT_THAT(render_report(input), Not(HasSubstr("<h2>Skipped steps</h2>")));
}

TEST(ReportTest, ShowsTheFirstHundredOfManySkippedSteps) {
  ReportInput input = small_run();
  input.steps.assign(150, {.step = 7, .loss = 1, .loss_scale = 1, .skipped = true});
  const std::string page = render_report(input);
  EXPECT_THAT(page, HasSubstr("The first 100 of 150."));
  size_t rows = 0;
  for (size_t at = page.find("no later step"); at != std::string::npos; at = page.find("no later step", at + 1)) {
    ++rows;
  }
  EXPECT_EQ(rows, 100U);
}

TEST(ReportTest, ShowsMistakesWithTheirTextsEscapedAndCut) {
  ReportInput input = small_run();
  EXPECT_THAT(render_report(input), Not(HasSubstr("Most confident mistakes")));
  input.misread = {{"<b>\n" + std::string(400, 'x'), "neg & co", "pos", 0.9876}};
  const std::string page = render_report(input);
  EXPECT_THAT(page, HasSubstr("<td class=\"text\">&lt;b&gt; " + std::string(296, 'x') +
                              " …</td><td>neg &amp; co</td><td>pos</td><td>98.8 %</td>"));
}

TEST(ReportTest, AMistakenWordIsMarkedAmongItsNeighbours) {
  ReportInput input = small_run();
  input.misread = {{"<Anna>", "", "B-PER", 0.5, "… a &", "b"}, {"Bert", "O", "B-PER", 0.25}};
  const std::string page = render_report(input);
  EXPECT_THAT(
      page,
      HasSubstr("<td class=\"text\">… a &amp; <b>&lt;Anna&gt;</b> b</td><td>–</td><td>B-PER</td><td>50.0 %</td>"));
  EXPECT_THAT(page, HasSubstr("<td class=\"text\">Bert</td><td>O</td>"));
}

TEST(ReportTest, NotesOfTheDataHaveTheirWarningsMarked) {
  ReportInput input = small_run();
  EXPECT_THAT(render_report(input), Not(HasSubstr("<h2>Notes</h2>")));
  input.notes = {"3 <texts>", "warning: 2 texts are twice"};
  const std::string page = render_report(input);
  EXPECT_THAT(page,
              HasSubstr("<h2>Notes</h2><div class=\"card\"><ul class=\"notes\">\n<li>3 &lt;texts&gt;</li>\n</ul>"));
  EXPECT_THAT(page, HasSubstr("<b class=\"bad\">Warnings</b><ul class=\"notes\">\n<li>2 texts are twice</li>\n</ul>"));
}

TEST(ReportTest, SaysWhereTheTimeWent) {
  ReportInput input = small_run();  // four steps of 2 s, three evaluations of 3 s
  input.end->minutes = 0.5;
  const std::string page = render_report(input);
  EXPECT_THAT(page, HasSubstr("training steps</th><td>8.0 s</td><td class=\"bar\" style=\"--w:26.7%\">26.7 %</td>"));
  EXPECT_THAT(page, HasSubstr("evaluations</th><td>9.0 s</td><td class=\"bar\" style=\"--w:30.0%\">30.0 %</td>"));
  EXPECT_THAT(page, HasSubstr("other</th><td>13 s</td><td class=\"bar\" style=\"--w:43.3%\">43.3 %</td>"));
  EXPECT_THAT(page, Not(HasSubstr("forward</th>"))) << "of another device's steps nobody knows";
  for (StepRecord& step : input.steps) {
    step.parts = {.batch = 0.01, .forward = 0.75, .backward = 1, .update = 0.2};
  }
  input.end->minutes = 17.0 / 60;
  const std::string split = render_report(input);
  EXPECT_THAT(split, HasSubstr("forward</th><td>3.0 s</td><td class=\"bar\" style=\"--w:17.6%\">17.6 %</td>"));
  EXPECT_THAT(split, HasSubstr("batches</th><td>0.0 s</td><td class=\"bar\" style=\"--w:0.2%\">0.2 %</td>"));
  EXPECT_THAT(split, HasSubstr("rest of the steps</th><td>0.2 s</td><td class=\"bar\" style=\"--w:0.9%\">0.9 %</td>"));
  EXPECT_THAT(split, HasSubstr("other</th><td>0.0 s</td><td class=\"bar\" style=\"--w:0.0%\">0.0 %</td>"));
  input.steps.front().parts.reset();
  EXPECT_THAT(render_report(input), Not(HasSubstr("forward</th>")))
      << "a version that did not measure them began the run";
  input.end.reset();
  EXPECT_THAT(render_report(input), Not(HasSubstr("<h2>Time</h2>"))) << "it is not known yet";
}

TEST(ConfusionTableTest, ShowsCountsRecallPrecisionAndSupport) {
  const std::string table = render_confusion({{30, 10}, {0, 0}}, {"负", "正"});
  EXPECT_THAT(table, HasSubstr("title=\"true 负, predicted 正: 10 of 40 (25.0 %)\">10</td>"));
  EXPECT_THAT(table, HasSubstr("<td class=\"edge\">75.0 %</td><td class=\"edge\">40</td>"));
  EXPECT_THAT(table, HasSubstr("<td class=\"edge\">–</td><td class=\"edge\">0</td>")) << "a label without texts";
  EXPECT_THAT(table, HasSubstr("precision</th><td class=\"edge\">100.0 %</td><td class=\"edge\">0.0 %</td>"));
}

TEST(ConfusionTableTest, NumbersLabelsWithoutANameAndListsConfusionsOfMany) {
  EXPECT_THAT(render_confusion({{1, 0}, {0, 1}}, {"a"}), HasSubstr("title=\"1\">1</th>"));
  std::vector<std::vector<int64_t>> counts(1000, std::vector<int64_t>(1000, 1));
  counts[3][7] = 500;
  const std::string list = render_confusion(counts, {});
  EXPECT_LT(list.size(), 10000u);
  EXPECT_THAT(list, HasSubstr("<tbody>\n<tr><td>3</td><td>7</td><td>500</td>"));
}

TEST(ChartAxisTest, PutsTicksAtRoundNumbers) {
  EXPECT_THAT(labels(ChartAxis::whole_numbers(1, 288)), ElementsAre("50", "100", "150", "200", "250"));
  EXPECT_THAT(labels(ChartAxis::whole_numbers(7, 7)), ElementsAre("6", "7", "8"));
  EXPECT_THAT(labels(ChartAxis::containing(0, 1.79, AxisScale::kLinear)), ElementsAre("0", "0.5", "1.0", "1.5", "2.0"));
  EXPECT_THAT(labels(ChartAxis::containing(0, 3e-5, AxisScale::kLinear)), ElementsAre("0", "1e-5", "2e-5", "3e-5"));
  EXPECT_THAT(labels(ChartAxis::containing(0, 0, AxisScale::kLinear)),
              ElementsAre("0", "0.2", "0.4", "0.6", "0.8", "1.0"));
  EXPECT_THAT(labels(ChartAxis::containing(65536, 65536, AxisScale::kLog2)),
              ElementsAre("32,768", "65,536", "131,072"));
  EXPECT_THAT(labels(ChartAxis::containing(0.02, 500, AxisScale::kLog10)),
              ElementsAre("0.01", "0.1", "1", "10", "100", "1,000"));
}

TEST(ChartAxisTest, PlacesEveryFiniteValueBetweenTheEnds) {
  for (const double low : {-1e308, -1.0, 0.0, 5e-324, 1.0, 1e15}) {
    for (const double high : {-1.0, 0.0, 5e-324, 1.0 + 1e-16, 1e15 + 1, 1e308}) {
      if (low <= high) {
        const auto axis = ChartAxis::containing(low, high, AxisScale::kLinear);
        EXPECT_GE(axis.place(low), 0) << low << " " << high;
        EXPECT_LE(axis.place(high), 1) << low << " " << high;
        EXPECT_LE(axis.ticks().size(), 15u);
      }
    }
  }
}

TEST(ChartAxisTest, WritesNumbersForPeople) {
  EXPECT_EQ(format_number(0.41234), "0.4123");
  EXPECT_EQ(format_number(65536), "65,536");
  EXPECT_EQ(format_number(-1234.56), "-1,234.6");
  EXPECT_EQ(format_number(3e-5), "3e-5");
  EXPECT_EQ(format_number(kInf), "non-finite");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(format_count(123), "123");
}

TEST(SvgChartTest, KeepsASpikeOfOneStepInALongRun) {
  Chart chart;
  ChartSeries series;
  for (int i = 0; i < 50000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 31234 ? 100 : 1);
  }
  chart.series = {series};
  EXPECT_THAT(render_chart(chart), HasSubstr(" 12.00L")) << "the top of the plot is at 12";
}

TEST(SvgChartTest, LeavesAGapForAValueThatIsNotFinite) {
  Chart chart;
  chart.series = {
      {.name = "a", .look = ChartSeries::Look::kLine, .color = 1, .x = {1, 2, 3, 4, 5}, .y = {1, 1, kNaN, 1, 1}}};
  const std::string svg = render_chart(chart);
  const std::string line = svg.substr(svg.find("class=\"line"));
  EXPECT_EQ(std::count(line.begin(), line.begin() + static_cast<long>(line.find("/>")), 'M'), 2);
}

TEST(SvgChartTest, MarksStepsOneByOneOrTogetherWhenTheyAreClose) {
  Chart chart;
  chart.series = {{.name = "a", .look = ChartSeries::Look::kSteps, .color = 1, .x = {1, 10000}, .y = {8, 4}}};
  chart.marks = {10, 11, 5000};
  chart.mark_name = "skipped step";
  const std::string svg = render_chart(chart);
  EXPECT_THAT(svg, HasSubstr("2 skipped steps: steps 10 to 11"));
  EXPECT_THAT(svg, HasSubstr("skipped step: step 5,000"));
  EXPECT_THAT(svg, HasSubstr("3 skipped steps</span>"));
}

TEST(SvgChartTest, SaysThatThereIsNoData) { EXPECT_THAT(render_chart({}), HasSubstr(">no data</text>")); }

TEST(HtmlTest, EscapesMarkupAndKeepsLines) {
  EXPECT_EQ(escape_html("<a b=\"c\" d='e'>&\n\t\x02中"), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;\n\t中");
  EXPECT_EQ(escape_html("\xef\xbf\xbe\xc2\x85"), "");
}

}  // namespace
}  // namespace mezzo::text
