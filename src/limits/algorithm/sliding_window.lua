-- Sliding window of two counters: the number of the window, its hits, and those of the one before: three doubles that hold whole numbers.
-- The twin of sliding_window.rs.
local sliding_window = {}

-- The most hits kept of the window before: no limit is greater.
local BEFORE_MAX = 4294967295

-- Returns what is spent as of now: this window's hits, and the rest of those before.
local function weighed(window)
  return window.used + math.ceil(math.min(window.before, window.requests) * window.left / window.period)
end

-- Returns what is spent as of now, whether the stored value is current, and the two windows.
function sliding_window.load(key, now, deepest, period, tick, requests)
  local ticks = math.floor(now / tick)
  local number = math.floor(ticks / period)
  local window = {number = number, used = 0, before = 0, period = period, left = period - ticks % period, requests = requests}
  local packed = redis.call('GET', key)
  if not packed then
    return 0, true, window
  end
  if #packed ~= 24 then
    error({err = 'ERR value is not a sliding window'})
  end
  local at, used, before = struct.unpack('<ddd', packed)
  if at > number then
    -- In the future: the clock went back.
    window.used = used + before
  -- equivalent: `==` -> `>=`: later windows were handled above
  elseif at == number then
    window.used, window.before = used, before
  -- equivalent: `==` -> `>=`: later windows were handled above
  elseif at == number - 1 then
    window.before = math.min(used, BEFORE_MAX)
  end
  return weighed(window), at <= number, window
end

-- Returns the cost of a grant. What has to come back of the window before is counted by its weight.
function sliding_window.granted(cost, spent, full, window)
  -- equivalent: `0` -> `-1`: all of both windows comes back with either
  local rest = math.max(math.min(spent, full) + cost, 0)
  local refund = spent - rest
  if refund > window.used then
    refund = window.used + window.before - math.floor(rest * window.period / window.left)
  end
  return -refund
end

-- Returns what is spent after the call, and whether the window before changed, even if its weight is 0.
function sliding_window.charged(spent, cost, deepest, window)
  local used, before = window.used, window.before
  window.used = charged(used, cost, deepest)
  window.before = math.max(before + math.min(used + cost, 0), 0)
  -- equivalent: `~=` -> `<`: the window before only gets smaller
  return weighed(window), window.before ~= before
end

function sliding_window.keep(key, spent, window, now, period, tick)
  -- equivalent: `==` -> `<=`: a count is never negative
  if window.used == 0 and window.before == 0 then
    redis.call('DEL', key)
    return
  end
  local ticks = window.left
  -- equivalent: `>` -> `~=`: a count is never negative
  if window.used > 0 then
    ticks = ticks + period
  end
  -- 2 ms longer than it fades: expiry has a resolution of 1 ms and uses a clock read earlier.
  local packed = struct.pack('<ddd', window.number, window.used, window.before)
  redis.call('SET', key, packed, 'PX', milliseconds(math.ceil(ticks * tick / 1000) + 2))
end

-- The extra value of a verdict.
function sliding_window.extra_reply(reply, window)
  reply[2] = window.before
end
