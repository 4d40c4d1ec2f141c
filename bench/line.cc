// SPDX-License-Identifier: Apache-2.0
#include "line.h"

#include <array>
#include <boost/json.hpp>
#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include "base/format.h"
#include "command.h"
#include "io/loop.h"
#include "measure.h"
#include "net/tcp_network.h"

namespace cistern {
namespace {

constexpr std::size_t kPairs = 2;
constexpr std::int64_t kWaitNs = 20'000'000'000;  // for iperf3's server

// Bytes a second that an iperf3 client's report says. It ends with 0 where nobody listened, too.
Result<double> ReceivedRate(const std::string& report) {
  boost::system::error_code error;
  const boost::json::value said = boost::json::parse(report, error);
  const auto* rate = error ? nullptr : said.find_pointer("/end/sum_received/bits_per_second", error);
  if (rate == nullptr || !rate->is_number())
    return Error(Code::kMismatch, Text("iperf3 reported no rate: ", report.substr(0, 300)));
  return rate->to_number<double>() / 8;
}

// Once its server listens.
Result<double> RateOfOne(const std::string& port, std::uint64_t bytes) {
  const Stopwatch watch;
  for (;;) {
    Result<std::string> report = OutputOf({"iperf3", "-c", "127.0.0.1", "-p", port, "-n", Text(bytes), "-J"});
    Result<double> rate = report ? ReceivedRate(*report) : Error(report.error());
    if (rate || watch.Ns() >= kWaitNs) return rate;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

Result<std::string> FreePort() {
  SystemClock clock;
  auto loop = io::MakeLoop(clock);
  if (!loop) return Error(loop.error());
  net::TcpNetwork network(**loop);
  auto listener = network.Listen("127.0.0.1:0");
  if (!listener) return Error(listener.error());
  const std::string& address = (*listener)->address();
  return address.substr(address.rfind(':') + 1);
}

bool HasLine() { return OutputOf({"iperf3", "--version"}).has_value(); }

std::string LineName() {
  if (!HasLine()) return "(iperf3 is not here)";
  std::string control;
  std::getline(std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control") >> std::ws, control);
  return Text("two iperf3 (", control, ")");
}

Result<double> LineRate(std::uint64_t bytes) {
  std::array<Result<double>, kPairs> rates;
  std::vector<std::thread> threads;
  for (Result<double>& rate : rates) {
    Result<std::string> port = FreePort();
    if (!port) {
      rate = Error(port.error());
      break;
    }
    // The time limit is for a server whose client never came.
    threads.emplace_back(
        [port = *port] { (void)OutputOf({"timeout", "60", "iperf3", "-s", "-1", "-p", port}); });
    threads.emplace_back([&rate, port = *port, bytes] { rate = RateOfOne(port, bytes / kPairs); });
  }
  for (std::thread& thread : threads) thread.join();
  double bytes_per_s = 0;
  for (const Result<double>& rate : rates) {
    if (!rate) return rate;
    bytes_per_s += *rate;
  }
  return bytes_per_s / 1e9;
}

}  // namespace cistern
