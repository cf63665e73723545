-- Fixed window: one integer at a key that ends with the window's start, as the reference keeps it. The twin of fixed_window.rs.
local fixed_window = {}

-- Counts are exact below; a count that would get there stays at one less.
local EXACT_MAX = 9007199254740992

-- What has been used, whether the key says so already, and whether there was no key.
function fixed_window.load(key)
  local text = redis.call('GET', key)
  if not text then
    return 0, true, true
  end
  local number = string.match(text, '^-?%d+$') and tonumber(text)
  if not number or math.abs(number) > 2 ^ 63 then
    error({err = 'ERR value is not an integer or out of range'})
  end
  local used = math.min(math.max(number, 0), EXACT_MAX - 1)
  return used, used == number, false
end

function fixed_window.keep(key, used, fresh, now, life)
  if fresh then
    redis.call('SET', key, used, 'EX', life)
  else
    redis.call('SET', key, used, 'KEEPTTL')
  end
end

-- What to do where INCRBY by so many hits has replied this, and not simply that there were hits before.
function fixed_window.settle(key, used, hits, life)
  if not tonumber(used) then
    if not string.find(used.err, 'overflow') then
      error(used)
    end
    used = EXACT_MAX
  end
  if used >= EXACT_MAX then
    -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
    redis.call('SET', key, EXACT_MAX - 1, 'KEEPTTL')
    return EXACT_MAX - 1
  end
  -- Nothing was there, or somebody left less than nothing, which is as good.
  -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
  redis.call('SET', key, hits, 'EX', life)
  return tonumber(hits)
end
