#include "mezzo/distributed/group/rank_environment.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>

namespace mezzo::distributed {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

// Rank 3 of 4, the second of 2 on its host.
const Variables kTorchrun{
    {"RANK", "3"},        {"WORLD_SIZE", "4"},     {"LOCAL_RANK", "1"},  {"LOCAL_WORLD_SIZE", "2"},
    {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1234"}, {"SLURM_PROCID", "0"}};
const Variables kOpenMpi{
    {"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "h"},          {"MASTER_PORT", "1234"}};
const Variables kMpich{{"PMI_RANK", "3"},        {"PMI_SIZE", "4"},    {"MPI_LOCALRANKID", "1"},
                       {"MPI_LOCALNRANKS", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1234"}};
const Variables kPals{{"PALS_RANKID", "3"},     {"PMI_SIZE", "4"},    {"PALS_LOCAL_RANKID", "1"},
                      {"PALS_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1234"}};
const Variables kSlurm{{"SLURM_PROCID", "3"},
                       {"SLURM_STEP_NUM_TASKS", "4"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_JOB_ID", "77"},
                       {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                       {"SLURM_STEP_NODELIST", "h,other"},
                       {"MASTER_PORT", "1234"}};

Variables with(Variables variables, const Variables& changed) {
  for (const auto& [name, value] : changed) {
    variables[name] = value;
  }
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

std::optional<RankEnvironment> detect(const Variables& variables) {
  return RankEnvironment::detect([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const Variables& variables) {
  try {
    detect(variables);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "(nothing was thrown)";
}

TEST(RankEnvironmentTest, UnderstandsEachLauncher) {
  const std::map<std::string, Variables> launchers{
      {"torchrun", kTorchrun}, {"Open MPI", kOpenMpi}, {"MPICH", kMpich}, {"PALS", kPals}, {"Slurm", kSlurm}};
  for (const auto& [name, variables] : launchers) {
    const auto found = detect(variables);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->launcher, name);
    EXPECT_EQ(found->rank, 3) << name;
    EXPECT_EQ(found->world_size, 4) << name;
    EXPECT_EQ(found->local_rank, 1) << name;
    EXPECT_EQ(found->local_world_size, 2) << name;
    EXPECT_EQ(found->master_addr, "h") << name;
    EXPECT_EQ(found->master_port, 1234) << name;
    EXPECT_FALSE(found->launcher_hosts_store) << name;
    EXPECT_EQ(found->restart_count, 0) << name;
  }
}

TEST(RankEnvironmentTest, ReadsWhatTorchrunSaysOfItsStoreAndRestarts) {
  const auto found =
      detect(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  EXPECT_TRUE(found->launcher_hosts_store);
  EXPECT_EQ(found->restart_count, 2);
  EXPECT_EQ(refusal(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "-1"}})),
            "environment variable TORCHELASTIC_RESTART_COUNT is '-1', not a whole number from 0 to 2147483647");
}

TEST(RankEnvironmentTest, CountsHowOftenSlurmRequeuedTheJob) {
  EXPECT_EQ(detect(with(kSlurm, {{"SLURM_RESTART_COUNT", "2"}}))->restart_count, 2);
}

TEST(RankEnvironmentTest, TakesRanksWithoutLocalOnesForOneAHost) {
  const auto found = detect(without(without(kTorchrun, "LOCAL_RANK"), "LOCAL_WORLD_SIZE"));
  EXPECT_EQ(found->local_rank, 0);
  EXPECT_EQ(found->local_world_size, 1);
  EXPECT_THAT(refusal(without(kTorchrun, "LOCAL_RANK")),
              HasSubstr("variable LOCAL_RANK is not set, but other variables"));
}

TEST(RankEnvironmentTest, FindsAMeetingPointWhereThereIsOne) {
  for (const auto& [variables, size] :
       {std::pair(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE"), {kMpich, "MPI_LOCALNRANKS"}, {kPals, "PALS_LOCAL_SIZE"}}) {
    const auto nowhere = without(without(variables, "MASTER_ADDR"), "MASTER_PORT");
    EXPECT_THAT(refusal(nowhere), HasSubstr(" started ranks on several hosts: set MASTER_ADDR"));
    const auto one_host = detect(with(nowhere, {{size, "4"}}));
    EXPECT_EQ(one_host->master_addr, "127.0.0.1");
    EXPECT_GE(one_host->master_port, 20000);
    EXPECT_EQ(one_host->master_port, detect(with(nowhere, {{size, "4"}}))->master_port);
  }
  EXPECT_THAT(refusal(without(kTorchrun, "MASTER_PORT")), HasSubstr("variable MASTER_PORT is not set"));
  EXPECT_THAT(refusal(with(kTorchrun, {{"MASTER_PORT", "99999"}})), HasSubstr("not a whole number from 1 to 65535"));
}

TEST(RankEnvironmentTest, TellsRunsApartByTheirLaunchersIds) {
  const auto id = [](const Variables& variables, const Variables& more = {}) {
    return detect(with(variables, more))->run_id;
  };
  EXPECT_EQ(id(kTorchrun), "");
  EXPECT_EQ(id(kTorchrun, {{"TORCHELASTIC_RUN_ID", "mine"}, {"SLURM_JOB_ID", "77"}}), "mine");
  EXPECT_EQ(id(kSlurm), "77");
  EXPECT_EQ(id(kSlurm, {{"SLURM_STEP_ID", "3"}}), "77.3");
  EXPECT_EQ(id(kOpenMpi, {{"PMIX_NAMESPACE", "1177944065"}}), "1177944065");
  EXPECT_EQ(id(kMpich, {{"PMI_JOBID", "job"}}), "job");
  EXPECT_EQ(id(kPals, {{"PALS_APID", "d5a1"}}), "d5a1");
  EXPECT_EQ(id(kOpenMpi), "");  // on two hosts, where mpirun's daemons are different processes
  EXPECT_EQ(id(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}), std::to_string(getppid()));
}

TEST(RankEnvironmentTest, GivesStepsOfOneJobPortsOfTheirOwn) {
  const auto port = [](const Variables& variables, const Variables& more) {
    return detect(with(without(variables, "MASTER_PORT"), more))->master_port;
  };
  std::set<uint16_t> ports;
  for (const char* step : {"0", "1", "2", "3", "10", "11"}) {
    ports.insert(port(kSlurm, {{"SLURM_STEP_ID", step}}));
  }
  EXPECT_EQ(ports.size(), 6);
  EXPECT_GE(*ports.begin(), 20000);
  EXPECT_LT(*ports.rbegin(), 30000);
  EXPECT_NE(port(kOpenMpi, {{"PMIX_NAMESPACE", "a"}}), port(kOpenMpi, {{"PMIX_NAMESPACE", "b"}}));
}

TEST(RankEnvironmentTest, TakesOneProcessForNoGroup) {
  EXPECT_FALSE(detect({}));
  EXPECT_FALSE(detect({{"WORLD_SIZE", "1"}, {"RANK", "0"}}));
  EXPECT_FALSE(detect({{"PMI_SIZE", "2"}}));
  EXPECT_FALSE(detect({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}));
}

TEST(RankEnvironmentTest, RefusesToBeAloneWhereThereShouldBeOthers) {
  EXPECT_EQ(refusal({{"WORLD_SIZE", "2"}}),
            "environment variable WORLD_SIZE is '2', but RANK is not set; set both or none");
  EXPECT_FALSE(detect({{"WORLD_SIZE", "1"}}));
  EXPECT_THAT(refusal({{"PMIX_RANK", "0"}}), HasSubstr("variable PMIX_RANK is set, but the number of ranks is not"));
}

TEST(RankEnvironmentTest, RefusesNumbersThatAreNone) {
  for (const std::string bad : {"", " 3", "3 ", "3.0", "three", "0x3", "4", "-1", "99999999999999999999"}) {
    EXPECT_EQ(refusal(with(kTorchrun, {{"RANK", bad}})),
              "environment variable RANK is '" + bad + "', not a whole number from 0 to 3");
    EXPECT_EQ(refusal(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", bad}})),
              "environment variable OMPI_COMM_WORLD_RANK is '" + bad + "', not a whole number from 0 to 3");
  }
}

TEST(RankEnvironmentTest, ReadsSlurmsTasksOfEachNode) {
  const auto tasks = [](const std::string& counts, const std::string& node) {
    return detect(with(kSlurm,
                       {{"SLURM_STEP_NUM_TASKS", "40"}, {"SLURM_STEP_TASKS_PER_NODE", counts}, {"SLURM_NODEID", node}}))
        ->local_world_size;
  };
  EXPECT_EQ(tasks("4", "0"), 4);
  EXPECT_EQ(tasks("4(x2),3", "0"), 4);
  EXPECT_EQ(tasks("4(x2),3", "1"), 4);
  EXPECT_EQ(tasks("4(x2),3", "2"), 3);
  EXPECT_EQ(tasks("2,3(x10),5(x2)", "10"), 3);
  EXPECT_EQ(tasks("2,3(x10),5(x2)", "12"), 5);
}

TEST(RankEnvironmentTest, FindsRank0OnTheFirstHostOfSlurmsNodeList) {
  const std::map<std::string, std::string> first_of{
      // As `scontrol show hostnames` of Slurm 22.05 has them.
      {"n", "n"},
      {"a,b", "a"},
      {"a-b-1,c", "a-b-1"},
      {"h[5]", "h5"},
      {"tux[007-011,020]", "tux007"},
      {"gpu[08,02]", "gpu08"},
      {"rack[0-1]node[3-4]", "rack0node3"},
      {"[1-3]", "1"},
      // Later versions take a suffix as well.
      {"prefix[1-3,5],other[01-02]-suffix", "prefix1"},
      {"other[01-02]-suffix,prefix[1-3,5]", "other01-suffix"},
      {"host[1-2].cluster,b", "host1.cluster"},
  };
  for (const auto& [list, first] : first_of) {
    EXPECT_EQ(detect(with(kSlurm, {{"SLURM_STEP_NODELIST", list}}))->master_addr, first) << list;
  }
  const auto by_job = with(without(kSlurm, "SLURM_STEP_NODELIST"), {{"SLURM_JOB_NODELIST", "job[3-4]"}});
  EXPECT_EQ(detect(by_job)->master_addr, "job3");
  EXPECT_EQ(detect(with(by_job, {{"SLURM_STEP_NODELIST", "step1"}}))->master_addr, "step1");
  EXPECT_EQ(detect(with(by_job, {{"MASTER_ADDR", "given"}}))->master_addr, "given");
  EXPECT_EQ(detect(with(by_job, {{"SLURM_LAUNCH_NODE_IPADDR", "192.0.2.1"}}))->master_addr, "job3");
}

TEST(RankEnvironmentTest, AsksForTheAddressWhereSlurmsNodeListCannotBeRead) {
  EXPECT_THAT(refusal(with(without(kSlurm, "SLURM_STEP_NODELIST"), {{"SLURM_LAUNCH_NODE_IPADDR", "192.0.2.1"}})),
              HasSubstr("set MASTER_ADDR to the host of rank 0"));
  for (const std::string bad : {"", ",a", "h[1-2", "a[]", "a[b-c]", "a[,1]", "a[-1]"}) {
    EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_STEP_NODELIST", bad}})),
                HasSubstr("set MASTER_ADDR to the host of rank 0"))
        << bad;
  }
}

TEST(RankEnvironmentTest, RefusesTasksOfNodesThatCannotBeRead) {
  for (const std::string bad : {"",       "4",         "4(",
                                "4(x",    "4(x2",      "4(x)",
                                "4(x0)",  "4(x-1)",    "4(x99999999999999999999)",
                                "(x2)",   "x",         "4,",
                                ",4",     "4,,4",      "4(x1)",
                                "4(x1),", "4(x1)(x2)", "4 (x2)",
                                "-4(x2)", "0(x2)",     "99999999999999999999(x2)"}) {
    EXPECT_EQ(refusal(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", bad}})),
              "environment variable SLURM_STEP_TASKS_PER_NODE is '" + bad + "', which has no entry for node 1");
  }
  EXPECT_EQ(refusal(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4294967298(x2)"}})),
            "environment variable SLURM_STEP_TASKS_PER_NODE is '4294967298(x2)': node 1 has more tasks than "
            "SLURM_STEP_NUM_TASKS, 4");
}

}  // namespace
}  // namespace mezzo::distributed
