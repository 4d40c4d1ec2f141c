// SPDX-License-Identifier: Apache-2.0
// One run of the storm: everything that a seed decides, the actors, the faults and the checks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "arena/match.h"
#include "arena/reader.h"
#include "catalog/forward_time.h"
#include "faults.h"
#include "model.h"
#include "node.h"
#include "scheduler.h"
#include "sim_words.h"

namespace cistern::storm {

// Memory that runs use one after the other; each finds it zeroed.
class SharedBytes {
 public:
  static constexpr std::uint32_t kMaxHeads = 3;
  SharedBytes();
  ~SharedBytes();
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;
  void Clear();
  std::byte* arena() const { return arena_; }
  std::byte* index() const { return index_; }

 private:
  std::size_t arena_bytes_, index_bytes_;
  std::byte *arena_, *index_;
};

// A namespace as this run has it.
struct IncarnationTree {
  NamespaceSpec spec;
  bool free_length = false;  // the bytes of a block are its put's
  std::vector<arena::MatchGroup> match;
  std::optional<std::uint16_t> first_full;
  std::set<std::uint64_t> gone;  // incarnations that were dropped

  std::uint16_t groups() const { return static_cast<std::uint16_t>(spec.groups.size()); }
  // Without a full group there may be blocks whose parent was never here, and a drop of any block ends these.
  bool drop_ends_orphans() const { return !first_full; }
  std::optional<std::uint16_t> ParentGroup(std::uint16_t group) const {
    return spec.groups[group].reach == Reach::kFull ? std::optional(group) : first_full;
  }
};

// The processes of one engine: what they share is known to all of them.
struct Engine {
  std::uint64_t number = 0;
  OwnerToken token{};
  std::uint32_t sessions = 0;
  std::vector<PutNo> held;                                 // written, neither published nor abandoned
  std::vector<std::pair<PutNo, std::uint32_t>> unwritten;  // parts that any of them may write
  std::vector<PutNo> unfinished;                           // all that was begun by this token
};

struct LeasedBlock {
  BlockId block;
  arena::Place place = 0;
  std::uint64_t generation = 0;
  std::uint64_t put = 0;
  // Of a chain whose end is held: it stays, and may be moved to another slot when memory shrinks.
  bool may_move = false;
};

// A lease as its client knows it. Lapsed: something happened that may have ended it.
struct LeaseNote {
  catalog::LeaseId id = 0;
  catalog::Caller caller;
  std::uint32_t ns = 0;
  Instant deadline;         // not before it
  Instant latest_deadline;  // surely then
  bool lapsed = false, released = false;
  std::uint64_t least_expiry = 0;  // of what it covers and hangs below, 0: none
  std::uint64_t cuts = 0;          // as World::Cuts, when it was asked for
  std::uint64_t boot = 0;
  std::vector<LeasedBlock> blocks;
};
using LeasePtr = std::shared_ptr<LeaseNote>;

PutId PutIdOf(PutNo number);

// How a node ends that does not end in order.
enum class Death : std::uint8_t { kKill, kPowerCut, kReboot };

class Client;

class World {
 public:
  // The seed chooses the tier where none is given.
  World(std::uint64_t seed, std::optional<TierKind> tier, SharedBytes& bytes, Logger& log, bool trace);
  ~World();

  // The whole run. Ends the process on a violation.
  void Run();
  const Faults& faults() const { return faults_; }
  std::uint64_t operations = 0, reads = 0, hits = 0, words = 0, starts = 0, failed_starts = 0;

  // ---- what actors share ----
  Scheduler& scheduler() { return scheduler_; }
  Random& random() { return scheduler_.random(); }
  bool Chance(std::uint32_t percent) { return random().Below(100) < percent; }
  Model& model() { return model_; }
  Faults& faults() { return faults_; }
  Damage& damage() { return damage_; }
  SimWords& sim() { return words_; }
  const std::vector<IncarnationTree>& trees() const { return trees_; }
  IncarnationTree& tree(std::uint32_t ns) { return trees_[ns]; }
  arena::ArenaView arena() const { return arena_; }
  arena::IndexView index() const { return index_; }
  bool ending() const { return ending_; }

  // Null while none serves.
  SimNode* node();
  std::uint64_t boots() const { return boots_; }
  // No process outlives one, nor does what it read.
  std::uint64_t reboots() const { return reboots_; }
  // Wall clock or what the store has surely persisted, whichever is later.
  std::uint64_t SureTime() const;
  std::uint64_t LeastTime() const { return ticked_wall_; }
  // By the last survey.
  bool InLowerTier(const BlockId& block) const;
  TierKind tier_kind() const { return tier_kind_; }
  bool has_lower_tier() const { return tier_kind_ != TierKind::kMemory; }
  // A few blocks of one slot size, on few regions where there is flash: what is written often lies where its
  // own namesake lay before.
  bool narrow() const { return narrow_; }
  // How much was cut, for reasons that no client is told of. With what is in the lower tier a lease may go
  // too.
  std::uint64_t Cuts();
  std::uint64_t LatestTime();

  std::uint64_t NewSession() { return ++sessions_; }
  Engine& engine(std::uint32_t number) { return *engines_[number]; }
  std::uint32_t engine_count() const { return static_cast<std::uint32_t>(engines_.size()); }
  void NewToken(Engine& engine);

  // ---- leases ----
  void AddLease(LeasePtr lease);
  // Something was asked for or done that may end leases on the block and below it.
  void Disturb(std::uint32_t ns, BlockCode code);
  void DisturbAll(std::uint32_t ns);
  void EndLeasesOf(catalog::SessionId session);
  std::vector<LeasePtr>& leases() { return leases_; }
  void CheckLease(LeaseNote& lease);
  // Of a block that is not where it was: it was moved, and the note knows where to.
  bool Moved(LeasedBlock& block);
  void CheckLeases();

  // ---- looking at memory as it is ----
  struct Look {
    arena::ReadOutcome outcome = arena::ReadOutcome::kMiss;
    Sighting seen;
    arena::Place place = 0;
    std::uint64_t generation = 0;
    std::uint64_t born = 0;
  };
  Look LookAt(const BlockId& block, bool with_body);
  // Whether it and all that it hangs below are found, each born after its parent.
  // `by_lower_tier`, when not null, is set where that takes something that lies in the lower tier alone.
  bool Reachable(const BlockId& block, bool* by_lower_tier = nullptr);
  Sighting SightingOf(const BlockId& block, const arena::OpenRecord& record) const;
  // Whether damage stands in the record at a place, or in the index entry that led there; in its body alone.
  bool DamagedRecord(arena::Place place, std::uint64_t body_bytes);
  // Whether the record that lies there has this length: one that was read with another was looked for by an
  // index entry whose words are of two lives of its key, and there is no seal where that says.
  bool HasLength(arena::Place place, std::uint64_t body_bytes) const {
    return arena_.directory(place)->body_bytes == body_bytes;
  }
  bool DamagedEntry(const BlockId& block);
  bool IndexDamaged() { return damage_.Standing(Fault::kFlipIndex); }
  bool BodyDamaged(arena::Place place, std::uint64_t body_bytes) {
    return damage_.Standing(arena_.slot(place), body_bytes);
  }
  std::optional<std::uint64_t> IncarnationOf(std::uint32_t ns) const;
  void SetAttached(std::uint32_t ns, std::uint32_t slot, std::uint64_t incarnation);
  std::uint32_t slot_of(std::uint32_t ns) const { return slots_[ns]; }

  // A put of this block, by this engine, of which nothing was asked yet.
  PutNo MakePut(const BlockId& block, Engine& engine, BlockCode parent, std::uint32_t ttl_s, bool held,
                std::uint64_t conversation);
  std::uint64_t PartBytes(PutNo put, std::uint32_t part) const { return model_.put(put).parts[part].bytes; }

  // ---- what clients tell ----
  void AddStaging(const std::shared_ptr<Staging>& staging);
  // Fills in what the model has to know of a drop: of keys, or with none of the whole namespace.
  void Drop(Call& call, std::uint32_t ns, std::vector<BlockCode> codes);
  // The conversation that a forest is of, now and then another one, or none.
  std::uint64_t SomeConversation(std::uint32_t ns, BlockCode code);
  std::uint64_t ConversationOf(std::uint32_t ns, BlockCode code) const {
    return talks_[ns][code / kTreeBlocks];
  }
  // A conversation hits blocks, and one is ended: as Drop (conversations.cc).
  void Use(Call& call, const std::vector<BlockId>& blocks);
  void EndConversation(Call& call, std::uint32_t ns);
  void CheckLogged(std::uint32_t ns, const std::vector<BlockCode>& codes, std::uint64_t incarnation,
                   std::uint64_t blocks);
  void LoseTouches(const std::vector<std::pair<BlockId, std::uint64_t>>& touches);
  // A block is being read.
  void NoteRead(const BlockId& block);
  // A block that it is time to read, if there is one: it was damaged, its touches were lost.
  std::optional<BlockId> Curious();
  void NoRoom();
  // A moment at which a crash would be worst.
  void Delicate() { delicate_ = Chance(40); }
  void Reported(const BlockId& block, arena::Place place, std::uint64_t generation,
                std::uint64_t body_bytes) {
    reported_.push_back({{block, place, body_bytes}, generation});
  }
  void Granted(LeaseNote& lease, const std::vector<BlockId>& blocks,
               const std::vector<store::ViewGrant>& views, Moment since);
  void RecordHandle(LeaseNote& lease, std::uint32_t ns, const std::vector<BlockCode>& chain);

 private:
  struct Somewhere {
    BlockId block;
    arena::Place place;
    std::uint64_t body_bytes;
  };
  void MakeTrees();
  void MakeOptions();
  std::uint64_t SomeMaxBlocks();
  std::uint64_t NarrowLength();
  void Boot();
  void Recovered(SimNode& node);
  void Ticked(std::uint64_t wall_s) { ticked_wall_ = std::max(ticked_wall_, wall_s); }
  void NoteCounters(SimNode& node);
  void Finish();
  void ReadBack();

  // ---- checks (checks.cc) ----
  bool Audit(SimNode& node);
  std::uint64_t AuditIndex(bool* settled);
  // False: its parent is nowhere, which is a breach unless what goes on below memory is about to end it.
  bool AuditParent(const BlockId& block, const Look& look);
  void RememberWarm();
  void CheckWarm(SimNode& node);
  // ---- conversations (conversations.cc) ----
  struct Sighted {
    BlockId block;
    PutNo put = 0;
    std::uint64_t born = 0;  // what is asked for again by the same put is another record
  };
  struct ConversationUse {
    Sighted what;
    std::uint64_t conversation;
    std::uint64_t boot;
  };
  struct Ending {
    std::uint32_t ns;
    std::uint64_t conversation, incarnation;
    Moment asked;
    std::vector<BlockCode> codes;  // of all that it may take along
    std::vector<Sighted> its_own;  // what it alone wrote and used
    std::vector<Sighted> shared;   // what another conversation has hit
    std::uint64_t boot, changes, drops;
  };
  std::optional<Sighted> See(const BlockId& block);
  bool UsedByOthers(const Sighted& what, std::uint64_t conversation);
  bool HitByOthers(const Sighted& what, std::uint64_t conversation) const;
  bool UnderNoted(const BlockId& block);
  bool MayTake(std::uint32_t ns, BlockCode code, std::uint64_t conversation);
  Ending BeginEnding(std::uint32_t ns, std::uint64_t conversation);
  void EndEnding(const Ending& ending, const Call& answer);
  // A put or a touch that begins while ends of its conversation are under way.
  void NoteUseBesideEnds(std::uint32_t ns, BlockCode code, std::uint64_t conversation);
  std::uint64_t WhatLeft();

  bool Doubtful(const BlockId& block);  // a drop of it may be under way
  bool Harmed(const BlockId& block);    // it or what it hangs below is damaged, and may be cut for that
  std::uint64_t LeastExpiry(std::uint32_t ns, BlockCode code);
  std::optional<BlockId> BlockOf(const record::SealView& seal);

  // ---- faults (inject.cc) ----
  void Inject();
  bool InjectOne(Fault kind);
  void KillNode(Death death);
  // Where `anyhow`, also when nothing is under way.
  bool KillSome(Fault kind, bool anyhow = false);
  void HarmJournal();
  // Both files of the journal as they were at the end of an earlier boot.
  struct OlderJournal {
    std::array<std::vector<std::byte>, 2> files;
    std::size_t dropped_namespaces;
  };
  void KeepJournal();
  bool RestoreJournal(std::uint64_t state);
  std::size_t DroppedNamespaces() const;
  void FormatMemory();
  bool FlipRecord(Fault kind);
  std::optional<Somewhere> SomeRecord();
  bool FlipEntry();
  std::optional<std::uint64_t> EntryOf(const BlockId& block);
  void CheckSource(const std::byte* from, std::size_t bytes);

  // ---- the lower tier, whichever (lower_tier.cc) ----
  void MakeLowerOptions();
  std::vector<std::string> Devices() const;
  bool InjectLowerTier(Fault kind);
  bool TakeOutSome();
  bool WritesUnderWay() const;
  void NoteDevices(SimNode& node);
  void CheckAcknowledged();
  bool OnlyInLowerTier(const LowerBlock& lower);

  // ---- the simulated tier (simulated_media.cc) ----
  void MakeSimulated();
  bool TierSuffers(tier::TierFault fault, const tier::Location& location);
  bool FlipSimulated();
  // What a write there costs, and so which are worth it, changes.
  void ChangeCosts();
  void CheckRooms();

  // ---- flash (flash_devices.cc) ----
  void MakeFlash();
  void Resize();
  bool FlipMedia();
  cistern::io::Fault AskDevice(const io::IoRequest& request, const std::string& path);
  std::optional<Fault> DueAt(const io::IoRequest& request);
  void NoteMediaRead(const io::IoRequest& request, const std::string& path);
  bool MediaDamaged();
  void NoteLostWrites();
  bool TierMayHaveLost(SimNode& node);
  void PlanDeath(Fault kind);
  bool LosesTail(const io::IoRequest& request, const std::string& path);
  std::optional<std::uint64_t> NextTo(const io::IoRequest& request);
  void LandLate();
  void TendDevices();
  std::vector<LowerBlock> Doubts(SimNode& node);
  void Told(SimNode& node, std::vector<LowerBlock> blocks);
  std::uint64_t Changes(SimNode& node);
  void CheckRegions();
  void CheckWarmLower(SimNode& node);
  bool PartlyInLowerTier(const BlockId& block);
  // Whether a record of the block, or of what it hangs below, in any group, is damaged in its slot.
  bool HarmedRecordAbove(std::uint32_t ns, BlockCode code);
  bool HarmedAbove(const LowerBlock& lower);
  void UnhangDevice(const std::string& path);
  void UnhangDevices();
  void NoteStart(const Status& status);
  cistern::io::Fault AskDisk(const io::IoRequest& request);

  std::uint64_t seed_;
  SharedBytes& bytes_;
  SimulatedClock clock_;
  Scheduler scheduler_;
  Faults faults_;
  Damage damage_;
  SimWords words_;
  PlainWords plain_;
  arena::Geometry geometry_;
  arena::ArenaSpace arena_;
  arena::IndexSpace index_;
  arena::Reader<PlainWords> reader_;
  io::SimulatedDisk disk_;
  Logger& log_;
  catalog::StoreOptions options_;
  std::vector<IncarnationTree> trees_;
  Model model_;
  std::vector<std::uint32_t> slots_;
  std::vector<std::uint64_t> incarnations_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  std::vector<LeasePtr> leases_;
  struct Warm {
    BlockId block;
    std::uint64_t put;
    arena::Place place;
    std::uint64_t body_bytes;
    std::uint32_t expiry;
    bool by_lower_tier;  // it, or something that it hangs below, lies in the lower tier alone
    bool damaged;  // its directory entry, at that time or since; a recovery that refuses it overwrites that
  };
  std::vector<Warm> warm_;
  // Drops without an answer, or whose answer leaves open whether the journal has them; code 0: the namespace.
  std::vector<std::pair<std::uint32_t, BlockCode>> dropping_;
  // By namespace and conversation: ends of it under way, and what it used since the first was asked for,
  // which they may take as well. Of `dropping_`, while any is.
  struct Ends {
    int under_way = 0;
    std::vector<BlockCode> used;
  };
  std::map<std::pair<std::uint32_t, std::uint64_t>, Ends> ends_;
  // By namespace and forest; who is ended gives its forest to another.
  std::vector<std::array<std::uint64_t, kTrees>> talks_;
  std::set<std::pair<std::uint32_t, std::uint64_t>>
      over_;                           // conversations of a namespace whose end was asked for
  std::vector<ConversationUse> uses_;  // that were answered, of what was there before and after
  struct ConversationTouch {
    std::uint32_t ns;
    BlockCode code;
    std::uint64_t conversation;
    friend auto operator<=>(const ConversationTouch&, const ConversationTouch&) = default;
  };
  struct TouchTime {
    std::uint32_t open = 0;  // under way
    Moment last = 0;
  };
  std::map<ConversationTouch, TouchTime> touches_;
  std::uint64_t conversations_ = 0, drops_asked_ = 0;
  std::uint64_t most_blocks_ = 0;  // that a start may have found more than options_.max_blocks
  std::vector<Somewhere> harmed_;
  std::vector<std::pair<Somewhere, std::uint64_t>> reported_;  // with the generation that was bad
  std::vector<BlockId> lost_touches_, curious_;
  // In use, and the last that are gone: their memory is nobody else's so long.
  std::deque<std::shared_ptr<Staging>> stagings_;
  std::uint64_t sessions_ = 0, boots_ = 0, tokens_ = 0, node_seeds_ = 0;
  std::uint64_t ticked_wall_ = 0;
  catalog::ForwardTime latest_;  // the latest that a node may hold it to be
  const SimNode* failed_node_ = nullptr;
  std::uint32_t failed_starts_ = 0, clocks_back_ = 0, audits_ = 0;
  std::uint64_t reboots_ = 0, carvings_ = 0, faults_wanted_ = 0;
  bool ending_ = false, disk_faulty_ = false, warm_known_ = false, delicate_ = false;
  // ---- the lower tier ----
  TierKind tier_kind_ = TierKind::kMemory;
  std::optional<flash::FlashOptions> flash_;
  std::optional<tier::SimulatedTierOptions> simulated_;
  tier::SimulatedMedia media_;
  std::vector<tier::Location> flipped_records_;  // on the simulated media, and not read since
  std::uint64_t media_known_ = 0;  // the id of the simulated media that the journal has for certain
  bool media_unknown_ = false;     // the node died before the journal had it
  std::optional<OlderJournal> older_journal_;
  std::uint64_t harmed_journal_ = UINT64_MAX;  // boots_ when one of its files was damaged
  std::vector<io::LateIo> late_;
  std::array<std::uint32_t, kFaultKinds>
      deadlines_{};  // faults of the device that the next operations suffer
  struct MediaMark {
    std::string path;
    std::uint64_t offset;
    std::byte value;
    bool seen;
  };
  std::vector<MediaMark> media_marks_;
  struct LostWrite {  // of which a power failure left what it liked, though its writer thought it durable
    std::string path;
    std::uint64_t offset;
    std::vector<std::byte> left;  // the beginning of what it left
  };
  std::vector<LostWrite> lost_writes_;  // that nothing was written over since
  std::uint64_t super_flipped_at_ = 0;  // which start
  std::vector<std::string> out_;        // devices out of service, by what the node says
  std::set<std::string> unsynced_;
  std::vector<LowerBlock> told_;        // of the last survey
  std::vector<LowerBlock> warm_lower_;  // lay in the lower tier alone when the node died
  std::optional<Death> planned_;        // of the node that makes a survey for it
  Fault planned_kind_ = Fault::kKill;
  std::uint64_t survey_changes_ = 0;
  bool torn_due_ = false;     // power is lost at one of the next writes
  bool clean_start_ = false;  // nothing befalls the next start, so that what it finds can be told
  bool narrow_ = false;
  std::uint64_t late_odds_ = 12;
  bool told_exact_ = false, lost_flush_ = false, power_was_cut_ = false, shrunk_ = false;
  std::uint32_t unsettled_ = 0;
  std::uint64_t device_faults_ = 0, device_faults_at_boot_ = 0;
  bool media_damaged_at_boot_ = false;  // a start may write over the damage that it found
  std::uint64_t known_changes_ = 0;
  arena::OpenRecord record_;
  std::vector<std::byte> body_;
  friend class Client;
};

}  // namespace cistern::storm
