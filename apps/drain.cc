// SPDX-License-Identifier: Apache-2.0
#include "drain.h"

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cstdio>
#include <ctime>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/format.h"
#include "base/units.h"

namespace cistern {
namespace {

constexpr std::int64_t kLookUs = 200'000;
constexpr std::int64_t kEndUs = 60'000'000;  // a node that was told to end lets go of its clients within 5 s

// What the node's status says of it.
struct Sample {
  std::string stage;
  std::uint64_t alone = 0, leases = 0, pending = 0;
  std::uint64_t asked_members = 0, given = 0, given_bytes = 0, lost = 0;
  bool complete = false, has_flash = false, handed_over = false;
};

std::uint64_t NumberIn(const boost::json::object& object, std::string_view name) {
  const boost::json::value* value = object.if_contains(name);
  return value != nullptr && value->is_number() ? value->to_number<std::uint64_t>() : 0;
}

std::optional<Sample> ParseSample(const std::string& text) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(text, error);
  const boost::json::object* all = error ? nullptr : value.if_object();
  const auto in = [&](std::string_view name) {
    const boost::json::value* section = all == nullptr ? nullptr : all->if_contains(name);
    return section == nullptr ? nullptr : section->if_object();
  };
  const boost::json::object *drain = in("drain"), *now = in("now");
  if (drain == nullptr || now == nullptr || !drain->contains("stage")) return std::nullopt;
  const boost::json::value& stage = drain->at("stage");
  const boost::json::object* flash = in("flash");
  const boost::json::value* devices = flash == nullptr ? nullptr : flash->if_contains("devices");
  const boost::json::value* given = drain->if_contains("given_blocks");
  const boost::json::value* complete = drain->if_contains("complete");
  return Sample{.stage = stage.is_string() ? std::string(stage.get_string()) : "",
                .alone = NumberIn(*drain, "alone_records"),
                .leases = NumberIn(*now, "leases"),
                .pending = NumberIn(*now, "pending"),
                .asked_members = NumberIn(*drain, "asked_members"),
                .given = given != nullptr && given->is_number() ? given->to_number<std::uint64_t>() : 0,
                .given_bytes = NumberIn(*drain, "given_bytes"),
                // An older node hands nothing over.
                .lost = NumberIn(*drain, drain->contains("lost_blocks") ? "lost_blocks" : "alone_records"),
                .complete = complete != nullptr && complete->is_bool() && complete->get_bool(),
                .has_flash = devices != nullptr && devices->is_array() && !devices->get_array().empty(),
                .handed_over = given != nullptr && given->is_number()};
}

std::string Left(const Sample& sample) {
  return Text(sample.alone, " blocks in memory alone, ", sample.leases, " leases, ", sample.pending,
              " puts that wait");
}

void Sleep(std::int64_t us) {
  timespec left{static_cast<time_t>(us / 1'000'000), static_cast<long>(us % 1'000'000 * 1000)};
  while (::nanosleep(&left, &left) != 0) continue;
}

void Say(const Sample& sample, const DrainOptions& options, bool json, bool stopped, std::int64_t took_us) {
  if (json) {
    std::printf(
        "{\"drain\":\"%s\",\"complete\":%s,\"alone_records\":%llu,\"given_blocks\":%llu,"
        "\"given_bytes\":%llu,\"lost_blocks\":%llu,\"leases\":%llu,\"pending\":%llu,\"stopped\":%s}\n",
        sample.stage.c_str(), sample.complete ? "true" : "false",
        static_cast<unsigned long long>(sample.alone), static_cast<unsigned long long>(sample.given),
        static_cast<unsigned long long>(sample.given_bytes), static_cast<unsigned long long>(sample.lost),
        static_cast<unsigned long long>(sample.leases), static_cast<unsigned long long>(sample.pending),
        stopped ? "true" : "false");
    return;
  }
  std::string what;
  if (!options.memory_goes) {
    what = Text("memory's files keep ", sample.alone, " blocks that no flash has");
  } else if (options.flash_goes) {
    what = sample.lost == 0 ? "no block goes with the node"
                            : Text(sample.lost, " blocks, which nobody took, go with the node");
  } else if (sample.alone > 0 && sample.lost == 0) {
    what = "no block goes with the host's memory";
  } else if (sample.lost > 0) {
    what = Text(sample.lost, sample.has_flash
                                 ? " blocks are in memory alone, because flash takes no more or none "
                                   "of their size, or the time has passed, and go with the host's "
                                   "memory"
                                 : " blocks go with the host's memory, since this node has no "
                                   "flash; where memory stays say --for upgrade");
  } else if (!sample.complete && sample.leases + sample.pending == 0) {
    what = "flash took every block, and the time has passed before they were durable there";
  } else {
    what = "flash has every block";
  }
  if (sample.handed_over && sample.asked_members == 0) {
    what = Text("no other node of the cell takes blocks, so nothing was handed over; ", what);
  } else if (sample.handed_over) {
    what =
        Text("other nodes took ", sample.given, " blocks (", RoughSizeText(sample.given_bytes), "); ", what);
  }
  if (sample.leases + sample.pending > 0)
    what += Text("; ", sample.leases, " leases and ", sample.pending, " puts did not end in time");
  std::printf("drained in %s: %s; %s\n",
              DurationText(static_cast<std::uint64_t>(took_us / 1000 * 1000)).c_str(), what.c_str(),
              stopped ? "the node has ended" : "it may be stopped");
}

// Waits until it is drained.
Result<Sample> AwaitDrained(Store& store, std::int64_t deadline_us) {
  std::string said;
  for (;; Sleep(kLookUs)) {
    const Result<std::string> text = store.StatusJson(deadline_us);
    if (!text) return Error(text.error());
    std::optional<Sample> sample = ParseSample(*text);
    if (!sample) return Error(Code::kMismatch, "the node's status says nothing of draining; is it older?");
    if (sample->stage == "off") return Error(Code::kGone, "the drain was ended by `cistern admin drain off`");
    if (sample->stage == "drained") return std::move(*sample);
    std::string line = Text(sample->stage, ": ", Left(*sample));
    if (line != said) std::fprintf(stderr, "%s\n", line.c_str());
    said = std::move(line);
  }
}

}  // namespace

Status AwaitEnd(const std::function<Result<std::string>()>& status) {
  SystemClock clock;
  const Instant until = clock.Now().PlusUs(kEndUs);
  for (;; Sleep(kLookUs)) {
    const Result<std::string> said = status();
    const std::optional<Sample> sample = said ? ParseSample(*said) : std::nullopt;
    if (sample && sample->stage == "off")
      return Status(Code::kGone, "the node goes on: `cistern admin drain off` came before its end");
    if (said && clock.Now() < until) continue;
    if (said)
      return Status(Code::kTooLate, Text("the node was told to end, and serves still after ",
                                         kEndUs / 1'000'000, " s; another order may have come"));
    if (said.error().code() == Code::kGone) return Status();
    return Status(said.error().code(), Text("the node was told to end, and whether it has is not known: ",
                                            said.error().message()));
  }
}

int RunDrain(std::string_view name, Store& store, const DrainOptions& options, std::int64_t deadline_us,
             bool json) {
  // It ends when what is left has been seen: a node that has ended says nothing.
  DrainOptions first = options;
  first.then_stop = false;
  if (Status begun = store.Drain(first, deadline_us); !begun.ok()) return Complain(name, begun);
  if (!options.on) {
    std::printf(json ? "{\"drain\":\"off\"}\n" : "the node is in service\n");
    return kExitOk;
  }
  SystemClock clock;
  const Instant begun = clock.Now();
  const Result<Sample> last = AwaitDrained(store, deadline_us);
  if (!last) return Complain(name, last.error());
  if (options.then_stop) {
    // What the first order left stays left: its time has passed, or there is nothing that takes more.
    DrainOptions second = options;
    second.within_us = 0;
    const Status stops = store.Drain(second, deadline_us);
    if (!stops.ok() && stops.code() != Code::kGone) {
      (void)store.Drain({.on = false}, deadline_us);  // it goes on as a part of another program
      return Complain(name, stops);
    }
    const Status ended = AwaitEnd([&] { return store.StatusJson(deadline_us); });
    if (!ended.ok()) return Complain(name, ended);
  }
  Say(*last, options, json, options.then_stop, clock.Now().UsSince(begun));
  return last->complete ? kExitOk : kExitFailed;
}

}  // namespace cistern
