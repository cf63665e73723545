-- Decides many checks in one call. KEYS has the key of each check; ARGV has the time (empty: Redis' clock), then the argument of each check.
-- Marks in ARGV: `T` and a number: the next so many checks are all or nothing; `L`: the next check is a dry run; `U` and a time: it is one
-- from then on; `D`: its counter is deleted before; `A` and three doubles, the wanted hits, the price of a hit, and parts: after it hits are
-- taken ahead, not in all or nothing. A refund that drops is a grant: what is spent over the limit comes back, too.
-- The reply is the time, then for each check what is spent after it, as -1 - spent if it was over limit, for some algorithms in a list with
-- more numbers, the last of which is the number of hits that were taken ahead; or the text of an error, which is that check's alone.
-- Locals are found faster than globals.
-- equivalent: `local` -> ``: the same tables
local redis, struct, math, string = redis, struct, math, string
local now = tonumber(ARGV[1])
if not now then
  -- equivalent: `call` -> `pcall`: TIME cannot fail
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- A time in ms as an argument. Redis writes numbers in a format that takes as long as reading a key.
local function milliseconds(life)
  return string.format('%d', life)
end

local makers, algorithms = {}, {}
--@ the twins of all algorithms
local FORMAT = '<BBBddddd'

local function algorithm_of(code)
  if not algorithms[code] then
    algorithms[code] = makers[code]()
  end
  return algorithms[code]
end

local function read(argument)
  local code, drops, enforcing, cost, full, deepest, life, rate = struct.unpack(FORMAT, argument)
  -- equivalent: `==` -> `>=`: flags are 0 or 1
  return algorithm_of(code), drops == 1, enforcing == 1, cost, full, deepest, life, rate
end

-- What is spent after a check, whether it was over limit, and whether the state has changed even if as much is spent.
local function charge(algorithm, spent, state, wanted, drops, full, deepest, argument)
  local cost, room = wanted, full
  if algorithm.price then
    -- equivalent: `full` -> `deepest`: there are never more holders than the limit
    cost, room = algorithm.price(wanted, full, state, argument)
  end
  -- equivalent: `<` -> `~=`: what is over the limit is dropped with either cost
  if drops and cost < 0 then
    cost = (algorithm.granted or granted)(cost, spent, full, state)
  end
  local over = spent + cost > room
  if over and drops then
    -- equivalent: `over` -> `drops`: both are true here
    return spent, over, false
  end
  if algorithm.charged then
    local after, changed = algorithm.charged(spent, cost, deepest, state, wanted, argument)
    return after, over, changed
  end
  return charged(spent, cost, deepest), over, false
end

-- The reply: spent, as -1 - spent if the check was over limit, or a list that begins with it.
local function reply_of(algorithm, key, state, spent, over, cost, full)
  local number = spent
  if over then
    -- equivalent: `spent` -> `number`: equal to spent here
    number = -1 - spent
  end
  if not algorithm.extra_reply then
    return number
  end
  local reply = {number}
  algorithm.extra_reply(reply, state, key, now, spent, over, cost, full)
  return reply
end

-- Takes hits ahead: at most those wanted, and at most one of equal parts of what is left. Returns what is spent after it, and the hits.
-- No algorithm whose charge depends on the argument of the check has them.
local function take(algorithm, spent, state, ahead, full)
  local hits, price, parts = struct.unpack('<ddd', ahead, 2)
  hits = math.max(math.min(hits, math.floor(math.floor((full - spent) / price) / parts)), 0)
  return charge(algorithm, spent, state, hits * price, true, full, full), hits
end

-- What was read of the argument of the check before: those of one rule are equal.
local known, algorithm, drops, enforcing, cost, full, deepest, life, rate

local function decide(key, argument, tried, deleted, ahead)
  if deleted then
    redis.call('DEL', key)
  end
  -- equivalent: `argument` -> `key`, `now`: is read again
  if argument ~= known then
    -- equivalent: `enforcing` -> `drops`: is for all or nothing
    algorithm, drops, enforcing, cost, full, deepest, life, rate = read(argument)
    -- equivalent: `known = argument` -> ``; `argument` -> `cost`, `deepest`, `full`, `key`, `life`, `now`, `rate`: is read again
    known = argument
  end
  local spent, kept, state = algorithm.load(key, now, deepest, life, rate, full)
  local after, over, changed = charge(algorithm, spent, state, cost, drops, full, deepest, argument)
  local reply = reply_of(algorithm, key, state, after, over, cost, full)
  if ahead then
    local hits
    after, hits = take(algorithm, after, state, ahead, full)
    if not algorithm.extra_reply then
      reply = {reply}
    end
    reply[#reply + 1] = hits
  end
  if not tried and (changed or after ~= spent or not kept) then
    algorithm.keep(key, after, state, now, life, rate)
  end
  return reply
end

-- All or nothing: decides on the loaded states, and writes them unless an enforcing check is over limit. Then they are loaded again, and
-- only those are charged that are over limit: refunds, and hits that count where the limit enforces.
local function decide_all_or_nothing(first, arguments, count)
  local slots, checks, blocked = {}, {}, false
  local function slot_of(index)
    local key, argument = KEYS[first + index], ARGV[arguments + index]
    local algorithm, drops, enforcing, cost, full, deepest, life, rate = read(argument)
    local slot = slots[key]
    if not slot then
      local spent, kept, state = algorithm.load(key, now, deepest, life, rate, full)
      slot = {algorithm = algorithm, spent = spent, loaded = spent, changed = not kept, state = state, life = life, rate = rate}
      slots[key] = slot
    end
    return slot, key, argument, drops, enforcing, cost, full, deepest
  end
  for index = 0, count - 1 do
    local slot, key, argument, drops, enforcing, cost, full, deepest = slot_of(index)
    local over, changed
    -- equivalent: `over` -> `drops`, `enforcing`, `blocked`; `drops` -> `over`; `full` -> `arguments`, `cost`, `count`, `deepest`, `first`, `index`, `now`: hits that count are charged whether over or not
    slot.spent, over, changed = charge(slot.algorithm, slot.spent, slot.state, cost, drops, full, deepest, argument)
    slot.changed = slot.changed or changed
    blocked = blocked or (over and enforcing)
    checks[index] = {over = over, reply = reply_of(slot.algorithm, key, slot.state, slot.spent, over, cost, full)}
  end
  if blocked then
    slots = {}
    for index = 0, count - 1 do
      local slot, key, argument, drops, enforcing, cost, full, deepest = slot_of(index)
      local check = checks[index]
      -- equivalent: `>` -> `~=`: what is below 0 is a refund, and was let through before
      if check.over and not drops and (cost < 0 or enforcing and cost > 0) then
        local over, changed
        slot.spent, over, changed = charge(slot.algorithm, slot.spent, slot.state, cost, drops, full, deepest, argument)
        slot.changed = slot.changed or changed
      elseif not check.over or not drops and slot.spent + cost > full then
        check.reply = reply_of(slot.algorithm, key, slot.state, slot.spent, check.over or slot.spent > full, cost, full)
      end
    end
  end
  for key, slot in pairs(slots) do
    if slot.changed or slot.spent ~= slot.loaded then
      slot.algorithm.keep(key, slot.spent, slot.state, now, slot.life, slot.rate)
    end
  end
  return checks
end

local function text_of(trouble)
  return trouble.err or trouble
end

local replies = {now}
local key, argument, tried, deleted, ahead = 1, 2, false, false, nil
while KEYS[key] do
  local code = string.byte(ARGV[argument])
  -- equivalent: `65` -> `64`: the argument of a check begins with a number below 7
  if code < 65 then
    local ok, reply = pcall(decide, KEYS[key], ARGV[argument], tried, deleted, ahead)
    replies[key + 1] = ok and reply or text_of(reply)
    key, argument, tried, deleted, ahead = key + 1, argument + 1, false, false, nil
  elseif code == 84 then -- T
    local length = tonumber(string.sub(ARGV[argument], 2))
    local ok, checks = pcall(decide_all_or_nothing, key, argument + 1, length)
    for index = 0, length - 1 do
      replies[key + index + 1] = ok and checks[index].reply or text_of(checks)
    end
    key, argument = key + length, argument + 1 + length
  -- equivalent: `==` -> `>=`: only T is greater as well, and was handled above
  elseif code == 85 then -- U
    argument, tried = argument + 1, now >= tonumber(string.sub(ARGV[argument], 2))
  -- equivalent: `==` -> `>=`: only T and U are greater, and were handled above
  elseif code == 76 then -- L
    argument, tried = argument + 1, true
  -- equivalent: `==` -> `>=`: only L, T and U are greater, and were handled above
  elseif code == 68 then -- D
    argument, deleted = argument + 1, true
  else -- A
    argument, ahead = argument + 1, ARGV[argument]
  end
end
return replies
