"""Tests as a project writes them, for `manage.py test`: tasks run in the test's own transaction, without a server."""

from datetime import timedelta

from django.db import transaction
from django.tasks import TaskResultStatus, default_task_backend
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from tests.rig.market.models import Order
from tests.rig.market.tasks import apay, pay


class InTheTestsTransaction(TestCase):
    def test_a_task_sees_what_the_test_has_written_and_the_test_what_the_task_has(self):
        order = Order.objects.create()
        with default_task_backend.app.test() as queue:
            result = pay.enqueue(order.pk)
            self.assertFalse(Order.objects.get().paid)
            queue.run(same_thread=True)
            result.refresh()
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertTrue(Order.objects.get().paid)

    def test_a_task_that_runs_a_minute_later_leaves_the_results_of_others(self):
        order = Order.objects.create()
        with default_task_backend.app.test() as queue:
            result = pay.enqueue(order.pk)
            later = pay.using(run_after=timezone.now() + timedelta(minutes=1)).enqueue(order.pk)
            queue.run(same_thread=True)
            for one in (result, later):
                one.refresh()
                self.assertEqual(one.status, TaskResultStatus.SUCCESSFUL)

    def test_nothing_is_left_of_the_test_before(self):
        self.assertEqual(Order.objects.count(), 0)

    def test_what_is_put_on_commit(self):
        order = Order.objects.create()
        with default_task_backend.app.test() as queue, self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: pay.enqueue(order.pk))
            queue.run(same_thread=True)
            self.assertFalse(Order.objects.get().paid)


class InTransactionsOfTheirOwn(TransactionTestCase):
    def test_tasks_of_both_kinds_in_threads(self):
        for task in (pay, apay):
            order = Order.objects.create()
            with default_task_backend.app.test() as queue:
                task.enqueue(order.pk)
                queue.run()
            self.assertTrue(Order.objects.get(pk=order.pk).paid)
