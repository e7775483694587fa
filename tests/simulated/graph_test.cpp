#include "simulated/graph.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/device_graph.h"
#include "simulated/device_test.h"

/// What recording and replaying on the simulated devices does, and the mistakes it
/// catches, each made here once.

namespace mezzo::simulated {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class GraphTest : public DeviceTest {
 protected:
  static void order(c10::Stream first, c10::Stream second) {
    c10::Event event(kType);
    event.record(first);
    event.block(second);
  }
  /// On a separate stream, in order with the test's.
  template <class Work>
  void on_side(const Work& work) {
    c10::Event before(kType), after(kType);
    before.record(current_stream(0));
    before.block(side);
    {
      const c10::StreamGuard guard(side);
      work();
    }
    after.record(side);
    after.block(current_stream(0));
  }
  template <class Work>
  std::unique_ptr<DeviceGraph> recorded(const Work& work) {
    auto graph = graphs->new_graph(/*goes_on=*/false);
    on_side([&] {
      graph->begin();
      work();
      graph->end();
    });
    return graph;
  }
  void replay(DeviceGraph& graph) {
    on_side([&] { graph.replay(); });
  }
  template <class Work>
  void expect_void(const Work& work, const std::string& why) {
    EXPECT_THAT([&] { recorded(work); }, testing::ThrowsMessage<c10::Error>(HasSubstr(why)));
    EXPECT_THAT(
        [&] {
          recorded([&] {
            try {
              work();
            } catch (const c10::Error&) {  // as a step might
            }
          });
        },
        testing::ThrowsMessage<c10::Error>(HasSubstr("the recording is void: ")));
    EXPECT_EQ(at::ones({2}, device).sum().item<float>(), 2) << "goes on as ever";
  }

  const c10::Stream side = Queue::create(device);
  const std::unique_ptr<DeviceGraphs> graphs = make_device_graphs(device);
};

TEST_F(GraphTest, DoesAgainWhatWasRecorded) {
  const auto x = at::ones({3}, device), sum = at::zeros({}, device);
  at::Tensor twice;
  const auto graph = recorded([&] {
    EXPECT_TRUE(graphs->is_recording());
    twice = x * 2;
    sum.add_(twice.sum());
  });
  EXPECT_FALSE(graphs->is_recording());
  EXPECT_EQ(sum.item<float>(), 0) << "nothing was done";
  const Watch watch;
  replay(*graph);
  x.fill_(10);
  replay(*graph);
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_EQ(sum.item<float>(), 66);
  EXPECT_TRUE(at::equal(twice.cpu(), at::full({3}, 20.0f)));
}

TEST_F(GraphTest, ForgetsWhatAnEarlierReplayLeft) {
  at::Tensor first, second;
  const auto a = recorded([&] { first = at::ones({2}, device); });
  const auto b = recorded([&] { second = at::ones({2}, device); });
  replay(*a);
  EXPECT_EQ(first.sum().item<float>(), 2);
  replay(*b);
  EXPECT_TRUE(first.isnan().all().item<bool>()) << "they share a pool";
  EXPECT_EQ(second.sum().item<float>(), 2);
}

TEST_F(GraphTest, DrawsAsItsKernelsWouldDraw) {
  at::Tensor numbers;
  const auto graph = recorded([&] { numbers = at::rand({5}, device) + at::rand({5}, device); });
  torch::manual_seed(4);
  const auto first = at::rand({5}, device) + at::rand({5}, device), second = at::rand({5}, device);
  torch::manual_seed(4);
  replay(*graph);
  EXPECT_TRUE(at::equal(numbers, first));
  EXPECT_TRUE(at::equal(at::rand({5}, device), second)) << "and so does what comes after";
  replay(*graph);
  EXPECT_FALSE(at::equal(numbers, first));
}

TEST_F(GraphTest, IsVoidWhereTheHostWaits) {
  const auto x = at::ones({3}, device);
  const auto pageable = at::ones({3});
  expect_void([&] { x.sum().item<float>(); }, "aten::_local_scalar_dense waits for the device");
  expect_void([&] { x.cpu(); }, "copy_ to the CPU waits for the device");
  expect_void([&] { x.nonzero(); }, "aten::nonzero waits for the device");
  expect_void([&] { x.copy_(pageable, /*non_blocking=*/true); }, "copy_ from pageable memory waits");
  expect_void([&] { synchronize(); }, "all waits for the device");
}

TEST_F(GraphTest, IsVoidWhereEventsLeadInOrOut) {
  const auto other = Queue::create(device);
  expect_void([&] { order(side, default_stream(0)); }, "an event between a stream that is recorded");
  expect_void([&] { order(other, side); }, "an event between a stream that is recorded");
}

TEST_F(GraphTest, RecordsStreamsThatItsEventsLeadTo) {
  const auto x = at::ones({3}, device);
  at::Tensor twice, sum;
  const auto beside = Queue::create(device);
  const auto work = [&] {
    const auto first = x + 1;
    order(side, beside);
    {
      const c10::StreamGuard guard(beside);
      twice = first * 2;
    }
    sum = first.sum();
  };
  const auto graph = recorded([&] {
    work();
    order(beside, side);
    sum += twice.sum();
  });
  replay(*graph);
  x.fill_(2);
  replay(*graph);
  EXPECT_EQ(sum.item<float>(), 27);
  EXPECT_THAT([&] { recorded(work); },
              testing::ThrowsMessage<c10::Error>(HasSubstr("the recording is void: nobody waits for stream")));
  const auto racing = recorded([&] {
    work();
    sum += twice.sum();
    order(beside, side);
  });
  replay(*racing);
  expect_fault("no event puts the two in order");
}

TEST_F(GraphTest, IsNotRecordedOnTheDefaultStream) {
  EXPECT_THROW(graphs->new_graph(/*goes_on=*/false)->begin(), c10::Error);
}

TEST_F(GraphTest, MayNotUseMemoryThatWasFreed) {
  auto x = at::ones({3}, device);
  at::Tensor y;
  const auto graph = recorded([&] {
    const auto between = x + 1;  // freed, but of the pool
    y = between + 1;
  });
  replay(*graph);
  EXPECT_EQ(y.sum().item<float>(), 9);
  x.reset();
  replay(*graph);
  expect_fault("uses memory that was freed since it was recorded");
}

TEST_F(GraphTest, OneThatIsDroppedWhileItRecordsEnds) {
  auto graph = graphs->new_graph(/*goes_on=*/false);
  on_side([&] {
    graph->begin();
    graph.reset();
  });
  EXPECT_EQ(at::ones({2}, device).sum().item<float>(), 2);
}

}  // namespace
}  // namespace mezzo::simulated
