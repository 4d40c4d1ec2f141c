// SPDX-License-Identifier: Apache-2.0
#include "planner/curve.h"

#include <algorithm>
#include <boost/unordered/unordered_flat_set.hpp>
#include <cmath>
#include <deque>
#include <tuple>
#include <utility>

#include "base/format.h"

namespace cistern::planner {
namespace {

constexpr std::uint64_t kMinuteMs = 60'000;
constexpr double kGB = 1e9;
constexpr std::uint64_t kSizesATime = 16;
constexpr double kResolution = 1.0 / 200;

// Calls `each(request)` for all requests of the workload.
template <class Each>
Status ForEach(const OpenWorkload& open, Each each) {
  Result<std::unique_ptr<workload::RequestSource>> source = open();
  if (!source) return source.error();
  workload::Request request;
  while (true) {
    const Result<bool> more = (*source)->Next(request);
    if (!more) return more.error();
    if (!*more) return Status();
    each(request);
  }
}

// Accesses of the last minute, and the most of any minute.
class BusiestMinute final {
 public:
  void Add(std::uint64_t at_ms, std::uint64_t accesses) {
    for (; !recent_.empty() && recent_.front().first + kMinuteMs <= at_ms; recent_.pop_front())
      sum_ -= recent_.front().second;
    recent_.emplace_back(at_ms, accesses);
    most_ = std::max(most_, sum_ += accesses);
  }
  std::uint64_t most() const { return most_; }

 private:
  std::deque<std::pair<std::uint64_t, std::uint64_t>> recent_;
  std::uint64_t sum_ = 0, most_ = 0;
};

Status Count(const OpenWorkload& open, Curve& curve) {
  boost::unordered_flat_set<std::uint64_t> seen;
  BusiestMinute minute;
  std::uint64_t first = 0, last = 0;
  Status status = ForEach(open, [&](const workload::Request& request) {
    if (curve.requests++ == 0) first = request.timestamp_ms;
    last = request.timestamp_ms;
    curve.accesses += request.hash_ids.size();
    seen.insert(request.hash_ids.begin(), request.hash_ids.end());
    minute.Add(request.timestamp_ms, request.hash_ids.size());
  });
  curve.distinct = seen.size();
  curve.span_s = static_cast<double>(last - first) / 1e3;
  curve.peak_accesses_per_s = static_cast<double>(minute.most()) / (static_cast<double>(kMinuteMs) / 1e3);
  return status;
}

// All sizes in one pass of the workload.
Status Measure(const OpenWorkload& open, const std::vector<std::uint64_t>& sizes, Curve& curve) {
  std::deque<workload::Simulator> simulators;
  for (const std::uint64_t blocks : sizes) simulators.emplace_back(curve.policy, blocks);
  Status status = ForEach(open, [&](const workload::Request& request) {
    for (workload::Simulator& simulator : simulators) simulator.Submit(request);
  });
  for (const workload::Simulator& simulator : simulators)
    curve.points.push_back({simulator.result().blocks, simulator.result().hits});
  std::ranges::sort(curve.points, {}, &CurvePoint::blocks);
  return status;
}

// `count` whole numbers from `low` to `high`, evenly spaced by ratio, each once.
std::vector<std::uint64_t> Spaced(std::uint64_t low, std::uint64_t high, std::uint64_t count) {
  std::vector<std::uint64_t> sizes;
  const double ratio = static_cast<double>(high) / static_cast<double>(low);
  for (std::uint64_t i = 0; i < count; ++i) {
    const double share = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 1.0;
    sizes.push_back(
        static_cast<std::uint64_t>(std::llround(static_cast<double>(low) * std::pow(ratio, share))));
  }
  const auto same = std::ranges::unique(sizes);
  sizes.erase(same.begin(), same.end());
  return sizes;
}

// Sizes between the smallest that reaches `wanted` and the next smaller one, without either; none when that
// is known.
std::vector<std::uint64_t> Between(const Curve& curve, double wanted) {
  const CurvePoint* reaching = curve.Reaching(wanted);
  if (!reaching) return {};
  const std::uint64_t high = reaching->blocks;
  const std::uint64_t low = reaching == curve.points.data() ? 0 : (reaching - 1)->blocks;
  if (high - low <=
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(high) * kResolution)))
    return {};
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t i = 1; i <= kSizesATime; ++i) {
    const std::uint64_t size = low + (high - low) * i / (kSizesATime + 1);
    if (size > low && size < high && (sizes.empty() || size > sizes.back())) sizes.push_back(size);
  }
  return sizes;
}

std::string Share(double rate) { return Text(NumberText(100 * rate), " %"); }

// Bytes a second that hits of such a share take in the busiest minute.
double BytesPerSecond(const Curve& curve, const SizingInput& input, double share) {
  return share * curve.peak_accesses_per_s * input.times * input.block_bytes;
}

// The cheapest way with these two, or nothing where the bandwidths do not allow it.
std::optional<TierChoice> Choose(const Curve& curve, const SizingInput& input, const Medium* upper,
                                 const Medium& lower, const CurvePoint& all) {
  for (const CurvePoint& point : curve.points) {
    const bool alone = upper == nullptr;
    if (point.blocks > all.blocks) break;
    const double above = alone ? 0 : curve.hit_rate(point);
    const double below = std::max(0.0, curve.hit_rate(all) - above);
    const double from_lower = BytesPerSecond(curve, input, below);
    if (from_lower > lower.bytes_per_s) {
      if (alone) break;
      continue;
    }
    if (!alone && BytesPerSecond(curve, input, above) > upper->bytes_per_s) break;
    TierChoice choice{.lower = lower.name, .lower_blocks = all.blocks, .lower_bytes_per_s = from_lower};
    choice.usd_per_month =
        *UsdPerMonth(lower, static_cast<double>(all.blocks) * input.block_bytes, input.months);
    if (!alone) {
      choice.upper = upper->name;
      choice.upper_blocks = point.blocks;
      choice.usd_per_month +=
          *UsdPerMonth(*upper, static_cast<double>(point.blocks) * input.block_bytes, input.months);
    }
    return choice;
  }
  return std::nullopt;
}

}  // namespace

const CurvePoint* Curve::Reaching(double wanted) const {
  const auto at = std::ranges::find_if(points, [&](const CurvePoint& p) { return hit_rate(p) >= wanted; });
  return at == points.end() ? nullptr : &*at;
}

Result<Curve> MeasureCurve(const OpenWorkload& open, workload::SimPolicy policy, std::uint64_t points,
                           std::optional<double> wanted) {
  Curve curve{.policy = policy};
  if (Status status = Count(open, curve); !status.ok()) return Error(status);
  if (curve.distinct == 0) {
    return Error(Code::kInvalid,
                 Text("the trace has ", curve.requests,
                      " requests and no block: there is nothing to reuse, so no curve to draw"));
  }
  std::vector<std::uint64_t> sizes = Spaced(1, curve.distinct, std::max<std::uint64_t>(points, 2));
  while (!sizes.empty()) {
    if (Status status = Measure(open, sizes, curve); !status.ok()) return Error(status);
    sizes = wanted ? Between(curve, *wanted) : std::vector<std::uint64_t>();
  }
  return curve;
}

std::optional<double> UsdPerMonth(const Medium& medium, double bytes, double months) {
  if (medium.rent_per_gb_month) return bytes / kGB * *medium.rent_per_gb_month;
  if (medium.price_high) return bytes / kGB * *medium.price_high / months;
  return std::nullopt;
}

Result<std::vector<TierChoice>> CheapestTiers(const Curve& curve, const SizingInput& input) {
  const CurvePoint* all = curve.Reaching(input.wanted);
  if (!all) {
    return Error(
        Code::kInvalid,
        Text("--hit-rate is ", Share(input.wanted), " and no size reaches it: of its ", curve.accesses,
             " blocks this workload asks for ", Share(curve.most()), " again; ask for that or less"));
  }
  std::vector<TierChoice> choices;
  bool priced = false;
  for (const Medium& lower : input.media) {
    if (!UsdPerMonth(lower, 1, input.months)) continue;
    priced = true;
    if (auto alone = Choose(curve, input, nullptr, lower, *all)) {
      choices.push_back(*alone);
      continue;  // nothing above it is needed
    }
    for (const Medium& upper : input.media) {
      if (upper.name == lower.name || !UsdPerMonth(upper, 1, input.months)) continue;
      if (upper.bytes_per_s <= lower.bytes_per_s) continue;
      if (auto both = Choose(curve, input, &upper, lower, *all)) choices.push_back(*both);
    }
  }
  if (!priced) return Error(Code::kInvalid, "none of the tiers has a price: give one in --data");
  if (choices.empty()) {
    return Error(Code::kInvalid,
                 Text("the busiest minute reads ",
                      QuantityText(BytesPerSecond(curve, input, curve.hit_rate(*all)), "B/s"),
                      " of KV, and no two of the tiers carry that: give faster ones in --tier or --data"));
  }
  std::ranges::sort(choices, {}, [](const TierChoice& choice) {
    return std::tie(choice.usd_per_month, choice.lower, choice.upper);  // equal ones in an order of their own
  });
  return choices;
}

Section SizingSection(const Curve& curve, const SizingInput& input, const TierChoice& choice) {
  Section section{.key = "sizing", .title = Text("Cheapest tiers for a hit rate of ", Share(input.wanted))};
  const auto figure = [&](std::string_view tier, std::string_view place, std::uint64_t blocks) {
    section.figures.push_back(
        {Text(place, "_bytes"), Text("of ", tier), static_cast<double>(blocks) * input.block_bytes, "B",
         "blocks x KV of a block",
         Text(NumberText(static_cast<double>(blocks)), " x ", NumberText(input.block_bytes), " B")});
  };
  if (!choice.upper.empty()) figure(choice.upper, "upper", choice.upper_blocks);
  figure(choice.lower, "lower", choice.lower_blocks);
  section.figures.push_back(
      {"lower_bytes_per_s", Text("read from ", choice.lower, " in the busiest minute"),
       choice.lower_bytes_per_s, "B/s",
       "share of accesses that hit there x accesses/s x times x KV of a block",
       Text(NumberText(curve.peak_accesses_per_s), " accesses/s x ", NumberText(input.times), " x ",
            NumberText(input.block_bytes), " B x share")});
  section.figures.push_back({"usd_per_month", "a month", choice.usd_per_month, "USD",
                             "GB x price / months, or x rent, each tier",
                             Text("the higher price, paid off in ", NumberText(input.months), " months")});
  section.notes.push_back(
      "What the upper tier holds lies in the lower one too. Bandwidths are of one device a tier; "
      "the busiest minute of the trace has to fit. Latency is not weighed: leave out tiers that "
      "are too slow for a first token (--tier)");
  return section;
}

}  // namespace cistern::planner
