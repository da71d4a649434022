"""Workers: functions that process the messages of queues."""
